#include "sim/cost/log_log.h"

#include <cmath>

namespace steptwin {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kHalfRoot = 0.70710678118654752440;

}  // namespace

// x = m 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 (s + s^3/3 + s^5/5 + ...), s = (m-1)/(m+1), |s| < 0.172.
double binary_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < kHalfRoot) m *= 2, --exponent;
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int k = 25; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent + 2 * s * sum / kLn2;
}

// 2^x = 2^n e^f, f = (x - n) ln 2, |f| < 0.35: the series of e^f.
double binary_exp(double x) {
  const double whole = std::floor(x + 0.5);
  const double f = (x - whole) * kLn2;
  double sum = 1;
  for (int k = 18; k >= 1; --k) sum = 1 + sum * f / k;
  return std::ldexp(sum, static_cast<int>(whole));
}

double log_log_line(double x, double x0, double y0, double x1, double y1) {
  const double part = (binary_log(x) - binary_log(x0)) / (binary_log(x1) - binary_log(x0));
  return binary_exp(binary_log(y0) + part * (binary_log(y1) - binary_log(y0)));
}

}  // namespace steptwin
