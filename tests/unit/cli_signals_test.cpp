// First signal: the flag; second: the end. Outside a StopScope the first one ends the program (specs/ux.md 2.10).
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

#include "cli/signals.h"

namespace steptwin {
namespace {

TEST(Signals, OutsideAScopeTheFirstEndsTheProgram) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
  EXPECT_EXIT(
      {
        install_signal_handlers();
        raise(SIGTERM);
      },
      testing::ExitedWithCode(143), "");
}

TEST(Signals, InAScopeTheFirstSetsTheFlag) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        const StopScope scope;
        if (scope.stopped()) std::_Exit(1);
        raise(SIGTERM);
        std::_Exit(scope.stopped() && scope.exit_code() == Exit::Terminated ? 0 : 2);
      },
      testing::ExitedWithCode(0), "");
}

TEST(Signals, TheSecondEndsTheProgram) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        const StopScope scope;
        raise(SIGINT);
        raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

TEST(Signals, AWriterWithoutReaderIsNotKilled) {
  EXPECT_EXIT(
      {
        install_signal_handlers();
        raise(SIGPIPE);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace steptwin
