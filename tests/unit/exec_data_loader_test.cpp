// Training data: windows of the text, the same for every split of a batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>

#include "exec/cpu/data_loader.h"
#include "schedule/base/error.h"
#include "schedule/compile.h"
#include "schedule/scenario.h"
#include "tests/support/rehearsal.h"

namespace steptwin {
namespace {

using Row = std::vector<std::int64_t>;

std::vector<std::uint8_t> bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::vector<std::uint8_t> counting(std::size_t size) {
  std::vector<std::uint8_t> text(size);
  std::iota(text.begin(), text.end(), std::uint8_t{0});
  return text;
}
DataShape shape_of(std::int64_t micro_batches, std::int64_t data_parallel, std::int64_t micro_batch = 2, std::int64_t sequence = 5) {
  return {micro_batches, micro_batch, sequence, data_parallel, 256};
}
Row row(const DataLoader& loader, std::int64_t sample, Ids which = Ids::Tokens) {
  Row ids(static_cast<std::size_t>(loader.shape().sequence));
  loader.fill_row(sample, which, ids.data());
  return ids;
}
// All rows of a step, over ranks and micro-batches.
std::multiset<Row> batch(const DataLoader& loader, std::int64_t step) {
  const DataShape& shape = loader.shape();
  std::multiset<Row> rows;
  for (std::int64_t rank = 0; rank < shape.data_parallel; ++rank) {
    Row ids(static_cast<std::size_t>(shape.micro_batches * shape.micro_batch * shape.sequence));
    loader.fill_step(step, rank, Ids::Tokens, ids.data());
    for (auto at = ids.begin(); at != ids.end(); at += shape.sequence) rows.emplace(at, at + shape.sequence);
  }
  return rows;
}

TEST(DataLoader, rows_are_windows_of_the_text_and_targets_are_one_byte_on) {
  const auto text = counting(200);
  const DataLoader loader(text, shape_of(4, 1), 1);
  for (std::int64_t sample = 0; sample < 50; ++sample) {
    const Row tokens = row(loader, sample), targets = row(loader, sample, Ids::Targets);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(tokens[i], tokens[0] + static_cast<std::int64_t>(i));
      EXPECT_EQ(targets[i], tokens[i] + 1);
    }
  }
}

TEST(DataLoader, ids_are_bytes_modulo_the_vocabulary) {
  DataShape shape = shape_of(1, 1);
  shape.vocabulary = 100;
  const auto text = bytes("zzzzzz\xff\xff\xff\xff\xff\xff");
  const DataLoader loader(text, shape, 1);
  for (std::int64_t sample = 0; sample < 20; ++sample)
    EXPECT_THAT(row(loader, sample), testing::Each(testing::AnyOf('z' % 100, 255 % 100)));
}

TEST(DataLoader, the_seed_alone_chooses_the_windows) {
  const auto text = counting(250);
  const DataLoader one(text, shape_of(4, 1), 1), again(text, shape_of(4, 1), 1), other(text, shape_of(4, 1), 2);
  EXPECT_EQ(batch(one, 0), batch(again, 0));
  EXPECT_NE(batch(one, 0), batch(other, 0));
  EXPECT_NE(batch(one, 0), batch(one, 1));
  const Row late = row(one, 7);  // no state: the order of asking does not matter
  row(one, 3);
  EXPECT_EQ(row(one, 7), late);
}

// 8 samples a step: as one rank of 4 micro-batches, two ranks of 2, four ranks of 1, or one micro-batch of 8.
TEST(DataLoader, a_step_has_the_same_batch_however_it_is_split) {
  const auto text = counting(250);
  const DataLoader whole(text, shape_of(4, 1), 9);
  for (const DataShape& split : {shape_of(2, 2), shape_of(1, 4), shape_of(1, 1, 8), shape_of(8, 1, 1), shape_of(2, 4, 1)}) {
    const DataLoader loader(text, split, 9);
    for (std::int64_t step = 0; step < 3; ++step) EXPECT_EQ(batch(loader, step), batch(whole, step));
  }
}

TEST(DataLoader, sample_numbers_count_through_the_steps_without_gap) {
  const DataShape shape = shape_of(3, 2, 4);
  std::vector<std::int64_t> numbers;
  for (std::int64_t step = 0; step < 2; ++step)
    for (std::int64_t mb = 0; mb < 3; ++mb)
      for (std::int64_t rank = 0; rank < 2; ++rank)
        for (std::int64_t r = 0; r < 4; ++r) numbers.push_back(sample_number(shape, step, mb, rank, r));
  std::vector<std::int64_t> expected(48);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(numbers, expected);
}

// Where every rank of a pipeline has tokens, each has samples of its own; where the first stage alone has, its replicas do.
TEST(DataLoader, ranks_with_tokens_are_numbered_stage_by_stage) {
  const auto numbers = [](const char* pipeline, Ids which, std::int64_t expected_ranks) {
    const Schedule s = compile(parse_scenario(R"({"format": 1, "model": {"family": "gpt", "layers": 3, "hidden": 64, "heads": 4,
 "vocabulary": 96, "positions": 32}, "mesh": {"pp": 3, "dp": 2}, "batch": {"micro_batches": 2, "micro_batch_size": 4, "sequence_length": 16},
 "machine": {"preset": "cpu"}})",
                                              "test.json", {{"pipeline", pipeline}}));
    EXPECT_EQ(data_shape(s).data_parallel, expected_ranks);
    EXPECT_EQ(data_shape(s).micro_batch, 4);
    std::vector<std::int64_t> of;
    for (const Program& program : s.programs)
      for (const Buffer& buffer : program.buffers)
        for (const RankId rank : program.ranks)
          if (s.name(buffer.name) == name_of(which)) of.push_back(batch_rank(s, rank).number());
    return of;
  };
  for (const Ids which : {Ids::Tokens, Ids::Targets}) {
    EXPECT_EQ(numbers(R"({"form": "bmtrain"})", which, 6), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(numbers(R"({"form": "stages"})", which, 2), (std::vector<std::int64_t>{0, 1}));
  }
}

TEST(DataLoader, fill_step_lays_micro_batches_one_behind_the_other) {
  const auto text = counting(250);
  const DataLoader loader(text, shape_of(2, 2), 3);
  Row ids(2 * 2 * 5), expected;
  loader.fill_step(1, 1, Ids::Targets, ids.data());
  for (const std::int64_t sample : {10, 11, 14, 15}) {  // ((step 1 * 2 + mb) * 2 + rank 1) * 2 + row
    const Row one = row(loader, sample, Ids::Targets);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  EXPECT_EQ(ids, expected);
}

TEST(DataLoader, a_text_of_one_sequence_and_a_byte_has_one_window) {
  const auto text = bytes("abcdef");
  const DataLoader loader(text, shape_of(1, 1), 1);
  for (std::int64_t sample = 0; sample < 20; ++sample) {
    EXPECT_EQ(row(loader, sample), (Row{'a', 'b', 'c', 'd', 'e'}));
    EXPECT_EQ(row(loader, sample, Ids::Targets), (Row{'b', 'c', 'd', 'e', 'f'}));
  }
}

TEST(DataLoader, every_window_up_to_the_last_is_drawn) {
  const auto text = counting(8);
  const DataLoader loader(text, shape_of(1, 1), 1);
  std::set<std::int64_t> begins;
  for (std::int64_t sample = 0; sample < 100; ++sample) begins.insert(row(loader, sample)[0]);
  EXPECT_EQ(begins, (std::set<std::int64_t>{0, 1, 2}));
}

TEST(DataLoader, a_text_shorter_than_a_sequence_says_how_much_is_needed) {
  for (const std::string_view text : {"", "abcde"}) {
    const auto data = bytes(text);
    try {
      const DataLoader loader(data, shape_of(1, 1), 1);
      FAIL() << "no exception";
    } catch (const EnvironmentError& error) {
      EXPECT_EQ(error.kind(), EnvironmentError::Kind::File);
      EXPECT_EQ(std::string(error.what()),
                "the training text has " + std::to_string(text.size()) + " bytes; a sequence of 5 tokens needs at least 6");
      EXPECT_THAT(error.help(), testing::HasSubstr("--data FILE"));
    }
  }
}

TEST(DataLoader, a_text_that_is_too_short_is_named) {
  const auto data = bytes("abc");
  try {
    const DataLoader loader(data, shape_of(1, 1), 1, "training text short.txt");
    FAIL() << "no exception";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(std::string(error.what()), "training text short.txt has 3 bytes; a sequence of 5 tokens needs at least 6");
  }
}

TEST(DataLoader, a_schedule_without_tokens_needs_no_text) { EXPECT_NO_THROW(DataLoader({}, DataShape{}, 1)); }

TEST(DataShape, is_read_from_the_schedule_whatever_its_stages) {
  for (const std::int64_t p : {1, 2}) {
    test::GivenPipeline pipeline;
    pipeline.p = p, pipeline.dp = 2, pipeline.m = 3;
    const DataShape shape = data_shape(compile(parse_scenario(test::scenario_text(pipeline), "t")));
    EXPECT_EQ(shape.micro_batches, 3);
    EXPECT_EQ(shape.micro_batch, 2);
    EXPECT_EQ(shape.sequence, 32);
    EXPECT_EQ(shape.data_parallel, 2);
    EXPECT_EQ(shape.vocabulary, 128);
    EXPECT_EQ(shape.samples_per_step(), 12);
  }
}

}  // namespace
}  // namespace steptwin
