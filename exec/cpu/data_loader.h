// Training data: byte tokens of a text, drawn by a seeded rule. Sample n of a run is a window of sequence + 1 bytes at a position that
// depends on (seed, n) alone, so every rank, mode and the plain model see the same data. tokens = its first bytes, targets = shifted by
// one, both modulo the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schedule/ir/schedule.h"

namespace steptwin {

// What a schedule says about its data. micro_batches = 0: it has no token buffers.
struct DataShape {
  std::int64_t micro_batches = 0, micro_batch = 0, sequence = 0;
  std::int64_t data_parallel = 1;  // ranks that have samples of their own
  std::int64_t vocabulary = 0;  // rows of the token table or the head
  std::int64_t samples_per_step() const { return micro_batches * data_parallel * micro_batch; }
};
// Reads the layouts of the `tokens` and `targets` buffers ([micro-batches, micro-batch, sequence]) and of embed.token.weight or
// head.weight. Where ranks of several pipeline stages have tokens, each has samples of its own.
DataShape data_shape(const Schedule& schedule);

enum class Ids : std::uint8_t { Tokens, Targets };
const char* name_of(Ids which);  // of the buffer
// Where a rank stands among those with samples of their own, which are numbered stage by stage, dp coordinate within a stage.
struct BatchRank {
  std::int64_t stages = 1, stage = 0;      // of its pipeline, those with tokens; its own among them (0: the samples of the only one)
  std::int64_t replicas = 1, replica = 0;  // pipelines
  std::int64_t number() const { return stage * replicas + replica; }
};
BatchRank batch_rank(const Schedule& schedule, RankId rank);

// Number of the sample in row `row` of a micro-batch of one data-parallel rank at a step (from 0): micro-batches outermost within a step.
std::int64_t sample_number(const DataShape& shape, std::int64_t step, std::int64_t micro_batch, std::int64_t data_parallel_rank,
                           std::int64_t row);

class DataLoader {
 public:
  // Throws EnvironmentError (File), naming the text, when it is shorter than one sequence + 1.
  DataLoader(std::span<const std::uint8_t> text, const DataShape& shape, std::uint64_t seed, const std::string& name = "the training text");
  // One row: `sequence` ids.
  void fill_row(std::int64_t sample, Ids which, std::int64_t* to) const;
  // The whole buffer of a rank at a step: [micro-batches, micro-batch, sequence].
  void fill_step(std::int64_t step, std::int64_t data_parallel_rank, Ids which, std::int64_t* to) const;
  const DataShape& shape() const { return shape_; }

 private:
  std::span<const std::uint8_t> text_;
  DataShape shape_;
  std::uint64_t seed_;
};

}  // namespace steptwin
