// What a run of a training step holds beside the schedule's ops: initial parameters, the data of every step, losses, gradients for the
// check.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "exec/backend.h"
#include "exec/cpu/data_loader.h"
#include "exec/cpu/held_ranges.h"
#include "exec/cpu/rank_memory.h"
#include "exec/cpu/run_part.h"
#include "exec/cpu/tensor_shares.h"
#include "exec/ops/compute.h"
#include "schedule/ir/matching.h"

namespace steptwin {

class TrainingState {
 public:
  // Throws EnvironmentError: a text that is too short, ids or a loss in another form than is filled in and read here.
  TrainingState(const Schedule& schedule, const Matching& matching, std::vector<RankMemory>& memories, const ExecuteOptions& options);

  void initialise_parameters();  // parameters and master copies, of shards what they hold; everything else stays zero. Lazy buffers later.
                                 // Or all of the state from ExecuteOptions::load: steps, data and Adam go on behind its last one. Returns early on the stop flag
  void save() const;             // into ExecuteOptions::save, if it is set
  void begin_step(std::uint32_t rank, std::uint32_t step);  // fills the input buffers
  // Around a compute op of a rank; from several threads for different ops.
  void before_op(std::uint32_t rank, std::uint32_t step, std::uint32_t op);
  void after_op(std::uint32_t rank, std::uint32_t step, std::uint32_t op);
  void guarded_off(std::uint32_t rank, std::uint32_t step, std::uint32_t op);  // in place of both, when its guard said no
  void end_step(std::uint32_t rank, std::uint32_t step);
  StepContext context(std::uint32_t rank, std::uint32_t step) const;

  std::vector<RunFact> facts() const;  // the loss scale and the steps that an overflow held back, where there is one
  // Losses of all steps; with keep_gradients, as the rank holds them, gradients of the first repetition and parameters as they stand.
  void fill_part(std::uint32_t rank, RankPart& part) const;

 private:
  struct RankLosses {
    std::vector<std::uint32_t> ops;          // local ops that write a loss
    std::vector<std::vector<float>> steps;  // [step][index into ops]; filled by the end of the step
  };
  const Program& program(std::uint32_t rank) const;
  void initialise(std::uint32_t rank, std::uint32_t buffer) const;  // as initialise_parameters(), one buffer
  void load();
  void find_losses(std::uint32_t rank);
  void read_shares(std::uint32_t rank, const Layout& layout, ByteRange range, const std::byte* data, TensorShares& shares) const;
  struct Skipped {
    std::int64_t steps = 0;              // that the optimizer did not make, earlier runs' included
    std::optional<std::uint32_t> last;  // of this run
  };
  std::optional<std::uint32_t> loss_scale_buffer(std::uint32_t rank) const;
  std::array<float, 3> loss_scale(std::uint32_t rank, std::uint32_t buffer) const;  // scale, good steps, skipped steps
  void set_up_loss_scale();
  void read_hidden_states(std::uint32_t rank);
  bool captures(std::uint32_t step) const { return options_.keep_gradients && step == 0; }

  const Schedule& schedule_;
  const Matching& matching_;
  std::vector<RankMemory>& memories_;
  const ExecuteOptions& options_;
  DataLoader loader_;
  std::vector<BatchRank> batch_ranks_;  // [rank]
  std::vector<RankLosses> losses_;
  std::mutex gradient_mutex_;
  std::vector<TensorShares> gradients_, hidden_;  // [rank]
  HeldRanges ranges_;
  std::int64_t earlier_steps_ = 0;  // of the checkpoint that was loaded
  mutable std::mutex skipped_mutex_;
  std::vector<Skipped> skipped_;    // [rank]
};

}  // namespace steptwin
