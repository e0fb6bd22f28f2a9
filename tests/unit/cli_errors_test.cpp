// Exceptions to exit codes (DESIGN 9).
#include <gtest/gtest.h>

#include <new>

#include "cli/errors.h"

namespace steptwin {
namespace {

Diagnostic problem(const char* code, Severity severity = Severity::Error) {
  Diagnostic result;
  result.code = code;
  result.severity = severity;
  return result;
}

template <class Exception>
Exit code_of(const Exception& exception) {
  return report(std::make_exception_ptr(exception), Messages(false, Verbosity::Quiet));
}

TEST(ExitCodes, CommandLineProblemsAreTwo) {
  EXPECT_EQ(exit_code_of(usage_error("x")), Exit::Usage);
  for (const char* code : {"OVERRIDE", "RUN", "RANK", "QUERY", "SQL", "SQL-STOPPED"}) EXPECT_EQ(exit_code_of(InputError(problem(code))), Exit::Usage) << code;
}

TEST(ExitCodes, OneFileProblemMakesItBadInput) {
  EXPECT_EQ(exit_code_of(InputError({problem("OVERRIDE"), problem("UNKNOWN-KEY")})), Exit::BadInput);
  EXPECT_EQ(exit_code_of(InputError({problem("OVERRIDE"), problem("SMALL-M", Severity::Warning)})), Exit::Usage);
}

TEST(ExitCodes, TheThreeExceptionsAndTheRest) {
  EXPECT_EQ(code_of(InputError(problem("SYNTAX"))), Exit::BadInput);
  EXPECT_EQ(code_of(EnvironmentError(EnvironmentError::Kind::File, "x")), Exit::Environment);
  EXPECT_EQ(code_of(EnvironmentError(EnvironmentError::Kind::Database, "x")), Exit::Environment);
  EXPECT_EQ(code_of(EnvironmentError(EnvironmentError::Kind::Device, "x")), Exit::Device);
  EXPECT_EQ(code_of(InternalError("x")), Exit::Bug);
  EXPECT_EQ(code_of(std::runtime_error("x")), Exit::Bug);
  EXPECT_EQ(code_of(42), Exit::Bug);
  EXPECT_EQ(code_of(std::bad_alloc()), Exit::Environment);
}

}  // namespace
}  // namespace steptwin
