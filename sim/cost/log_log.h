// Straight lines through measured points on log-log paper. Logarithms are calculated with + - * / only, so that the result is the same on
// every machine (specs: durations do not depend on the maths library).
#pragma once

namespace steptwin {

double binary_log(double x);  // log2, x > 0; relative error below 1e-15
double binary_exp(double x);  // 2^x, |x| < 1000

// y at x of the line through (x0, y0) and (x1, y1); all > 0, x0 < x1.
double log_log_line(double x, double x0, double y0, double x1, double y1);

}  // namespace steptwin
