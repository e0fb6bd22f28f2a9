// Looking at the spans of a trace by hand.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "traces/trace.h"

namespace steptwin::test {

// The span of an op of a rank in the first step; ops count from the program's first. Throws where it did not run.
inline const Span& span_of(const Trace& trace, std::uint32_t rank, std::uint32_t op) {
  std::uint32_t seen = 0;
  for (const Span& span : trace.spans)
    if (span.rank.value == rank && span.step == 0 && seen++ == op) return span;
  throw std::out_of_range("no such span");
}

// "start-end" of an op of a rank, in ns; "none" where it did not run.
inline std::string when(const Trace& trace, std::uint32_t rank, std::uint32_t op) {
  try {
    const Span& span = span_of(trace, rank, op);
    return std::to_string(ns(span.start)) + "-" + std::to_string(ns(span.end));
  } catch (const std::out_of_range&) {
    return "none";
  }
}

}  // namespace steptwin::test
