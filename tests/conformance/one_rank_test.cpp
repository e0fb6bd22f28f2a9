// A rank alone: every collective of one member, and a message to itself, hands on what it was given.
#include "tests/conformance/suite.h"

namespace steptwin::test {
namespace {

class OneRank : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Every, OneRank, testing::ValuesIn(one_rank_backends()), name_of_row);

TEST_P(OneRank, every_kind_of_communication_with_itself_keeps_the_data) {
  const Schedule schedule = sound_schedule(R"(mesh pp 1
comm w axes pp
comm ring axes pp
layout l
  tensor t fp32 6 at 0
program p ranks 0
  lane run compute
  lane net network
  buffer x activation 24B layout l
  buffer s activation 24B layout l
  buffer g activation 24B layout l
  buffer d activation 24B layout l
  buffer z activation 24B layout l
  buffer t param layout l resident
  0 compute F fill write x lane run
  1 reduce_scatter on w dtype fp32 read x write s lane net after 0
  2 gather on w dtype fp32 read s write g lane net after 1
  3 all_reduce on w dtype fp32 update g lane net after 2
  4 broadcast on w root 0 dtype fp32 read g lane net after 3
  5 all_to_all on w dtype fp32 read g write d lane net after 4
  6 send on ring to 0 dtype fp32 read d lane net after 5 group 0
  7 recv on ring from 0 dtype fp32 write z lane net group 0
  8 compute U add read z write t lane run after 7
)");
  expect_t(run(schedule, 2), {{3, 5, 7, 9, 11, 3}});  // op 0 writes 1 + i % 5, op 8 adds 2 + i % 5
}

}  // namespace
}  // namespace steptwin::test
