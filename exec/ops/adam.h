// Adam's constants: defaults of the paper (Kingma and Ba 2015) and of every framework.
#pragma once

namespace steptwin {

inline constexpr double kAdamLearningRate = 1e-3;
inline constexpr double kAdamBeta1 = 0.9;
inline constexpr double kAdamBeta2 = 0.999;
inline constexpr double kAdamEpsilon = 1e-8;

}  // namespace steptwin
