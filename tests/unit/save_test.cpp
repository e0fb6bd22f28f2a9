// A checkpoint save as a schedule (schedule/save.h; specs/bmtrain.md 9.5): its ops, its traffic, its memory, its time.
#include "schedule/save.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/compile.h"
#include "schedule/ir/liveness.h"
#include "schedule/ir/text.h"
#include "schedule/ir/verify.h"
#include "sim/cost/stated.h"
#include "sim/simulate.h"
#include "tests/support/zero_case.h"

namespace steptwin {
namespace {

using Case = test::ZeroCase;

Schedule save_of(const Case& c, std::vector<Override> more = {}) {
  more.push_back({"run.task", "save"});
  return test::compiled(c, more);
}

Case level3(int pp, int dp) {
  Case c;
  c.zero = R"("level": 3)";
  c.pp = pp, c.dp = dp, c.layers = 4;
  return c;
}

const Program& program(const Schedule& s, const std::string& name) {
  const auto found = std::find_if(s.programs.begin(), s.programs.end(), [&](const Program& p) { return p.name == name; });
  if (found == s.programs.end()) throw std::runtime_error("no program " + name);
  return *found;
}

// ---- ops -------------------------------------------------------------------------------------------------------------------

std::string tensor_of(const Schedule& s, const Program& p, const Access& access) {
  const Layout& layout = s.layouts[p.buffers[access.buffer.value].layout.value];
  return layout.tensors[access.part.kind == Part::Kind::Tensor ? access.part.a : 0].name;
}

// "AG layers.0" a gather, "D name" a copy down and the wait for it, "S name" a send, "R name" a receive, "W" a wait for a send.
std::string words_of(const Schedule& s, const Program& p) {
  std::string text;
  OpId copied;
  for (std::uint32_t k = p.first_op.value; k < p.first_op.value + p.op_count; ++k) {
    const Op& op = s.ops[k];
    const auto accesses = s.accesses_of(OpId(k));
    if (const auto* wait = std::get_if<HostWait>(&op.body)) {
      if (wait->target != copied) text += "W ";
      continue;
    }
    if (std::holds_alternative<AllGather>(op.body)) {
      const std::string_view shard = s.name(p.buffers[accesses[0].buffer.value].name);
      text += fmt::format("AG {} ", shard.substr(0, shard.rfind('.')));
    }
    if (std::holds_alternative<Send>(op.body)) text += "S " + tensor_of(s, p, accesses[0]) + " ";
    if (std::holds_alternative<Recv>(op.body)) text += "R " + tensor_of(s, p, accesses[0]) + " ";
    if (!std::holds_alternative<Copy>(op.body)) continue;
    copied = OpId(k);
    EXPECT_EQ(tensor_of(s, p, accesses[0]), tensor_of(s, p, accesses[1]));
    EXPECT_TRUE(std::holds_alternative<HostWait>(s.ops[k + 1].body)) << "the host waits for every copy";
    text += "D " + tensor_of(s, p, accesses[1]) + " ";
  }
  return text;
}

std::string each_of_layer(int layer, const std::vector<const char*>& words) {
  std::string text;
  for (const char* tensor : {"attn.norm.weight", "attn.norm.bias", "attn.qkv.weight", "attn.qkv.bias", "attn.out.weight", "attn.out.bias",
                             "mlp.norm.weight", "mlp.norm.bias", "mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"})
    for (const char* word : words) text += fmt::format("{} layers.{}.{} ", word, layer, tensor);
  return text;
}

TEST(SaveProgram, OfTwoStagesWithTwoReplicasByHand) {
  Case c = level3(2, 2);
  c.layers = 2;
  const Schedule s = save_of(c);  // tied: the last stage's copy of the table is not saved again
  ASSERT_EQ(s.programs.size(), 4u);
  EXPECT_EQ(words_of(s, program(s, "pp0dp0")),
            "AG embed.token.weight D embed.token.weight AG embed.position.weight D embed.position.weight AG layers.0 " +
                each_of_layer(0, {"D"}) + each_of_layer(1, {"R", "D"}) +
                "R head.norm.weight D head.norm.weight R head.norm.bias D head.norm.bias ");
  EXPECT_EQ(words_of(s, program(s, "pp0dp1")), "AG embed.token.weight AG embed.position.weight AG layers.0 ");
  EXPECT_EQ(words_of(s, program(s, "pp1dp0")),
            "AG layers.1 " + each_of_layer(1, {"S"}) + "W AG head.norm.weight S head.norm.weight W AG head.norm.bias S head.norm.bias W ");
  EXPECT_EQ(words_of(s, program(s, "pp1dp1")), "AG layers.1 AG head.norm.weight AG head.norm.bias ");
  EXPECT_EQ(program(s, "pp0dp1").ranks, std::vector<RankId>{RankId(1)});
  EXPECT_EQ(program(s, "pp1dp0").ranks, std::vector<RankId>{RankId(2)});
}

// Without ZeRO-3 every rank of a stage has what is saved.
TEST(SaveProgram, GathersNothingThatIsWhole) {
  for (const char* zero : {R"("level": 0)", R"("level": 1)", R"("level": 2)"}) {
    Case c = level3(2, 4);
    c.zero = zero, c.layers = 2;
    const Schedule s = save_of(c);
    EXPECT_EQ(words_of(s, program(s, "pp0dp0")), "D embed.token.weight D embed.position.weight " + each_of_layer(0, {"D"}) +
                                                     each_of_layer(1, {"R", "D"}) +
                                                     "R head.norm.weight D head.norm.weight R head.norm.bias D head.norm.bias ");
    EXPECT_EQ(words_of(s, program(s, "pp1dp0")), each_of_layer(1, {"S"}) + "W S head.norm.weight W S head.norm.bias W ");
    EXPECT_EQ(program(s, "pp0dp1-3").op_count, 0u);
    EXPECT_EQ(program(s, "pp1dp1-3").ranks.size(), 3u);
  }
}

// Embedding and head are on every rank there: sharded over all of them they are gathered, nobody sends them.
TEST(SaveProgram, OfTheFormBmtrain) {
  Case c = level3(2, 2);
  c.layers = 2, c.order = "gpipe";
  const std::vector<Override> form = {{"pipeline", R"({"form": "bmtrain", "micro_batches": 2})"}, {"batch.micro_batch_size", "2"}};
  const std::string ends = "AG embed.token.weight AG embed.position.weight ";
  const Schedule s = save_of(c, form);
  EXPECT_EQ(words_of(s, program(s, "pp0dp0")),
            "AG embed.token.weight D embed.token.weight AG embed.position.weight D embed.position.weight AG layers.0 " +
                each_of_layer(0, {"D"}) + each_of_layer(1, {"R", "D"}) +
                "AG head.norm.weight D head.norm.weight AG head.norm.bias D head.norm.bias ");
  EXPECT_EQ(words_of(s, program(s, "pp1dp0")),
            ends + "AG layers.1 " + each_of_layer(1, {"S"}) + "W AG head.norm.weight AG head.norm.bias ");
  EXPECT_EQ(words_of(s, program(s, "pp1dp1")), ends + "AG layers.1 AG head.norm.weight AG head.norm.bias ");
  c.zero = R"("level": 3, "ends": "whole")";
  const Schedule whole = save_of(c, form);
  EXPECT_EQ(words_of(whole, program(whole, "pp1dp0")), "AG layers.1 " + each_of_layer(1, {"S"}) + "W ");
}

// ---- over everything -------------------------------------------------------------------------------------------------------

struct Combination {
  Case c;
  std::vector<Override> more;
  std::string name;
};

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  const char* const kZero[] = {R"("level": 0)",
                               R"("level": 1)",
                               R"("level": 2)",
                               R"("level": 3)",
                               R"("level": 3, "ends": "whole")",
                               R"("level": 3, "shard_ranks": 1)",
                               R"("level": 3, "form": "fsdp")",
                               R"("level": 3, "form": "deepspeed", "param_persistence_threshold": 100)"};
  for (const char* zero : kZero)
    for (const int pp : {1, 2})
      for (const int dp : {1, 3})
        for (const bool tied : {true, false}) {
          Case c = level3(pp, dp);
          c.zero = zero, c.tied = tied;
          all.push_back({c, {}, fmt::format("{} pp{} dp{} tied {}", zero, pp, dp, tied)});
          const std::string name = all.back().name;
          all.push_back({c, {{"model.frozen", R"(["layers.*.attn.*", "embed.position.weight"])"}}, name + " frozen"});
          if (pp < 4) all.push_back({c, {{"model.layers_per_block", "2"}}, name + " shared"});
          if (pp == 1 || std::string(zero).find("form") != std::string::npos) continue;
          c.order = "gpipe";
          all.push_back({c, {{"pipeline", R"({"form": "bmtrain"})"}}, name + " bmtrain"});
        }
  return all;
}

TEST(Save, IsSoundAndReadsBackWhateverIsSharded) {
  for (const Combination& k : combinations()) {
    const Schedule s = save_of(k.c, k.more);
    for (const Diagnostic& d : verify(s)) ADD_FAILURE() << k.name << ": " << d.code << " " << d.text;
    EXPECT_EQ(parse_schedule(print_schedule(s), "save.sched"), s) << k.name;
  }
}

Bytes model_bytes(const Case& c, const std::vector<Override>& more) {
  std::vector<Override> of_model;
  for (const Override& o : more)
    if (o.path.starts_with("model.")) of_model.push_back(o);
  const ModelShape model =
      parse_scenario(fmt::format(R"({{"format": 1, "model": {{"family": "gpt", "positions": 32, "layers": {}, "hidden": 60, "heads": 4,
    "vocabulary": 97, "tied": {}}}, "batch": {{"micro_batches": 1, "sequence_length": 16}}, "machine": {{"preset": "cpu"}}}})",
                                 c.layers, c.tied),
                     "m.json", of_model)
          .model;
  return Bytes(parameter_count(model) * size_of(DType::Bf16));
}

// Bytes of all ops of one kind in a program.
template <class Kind>
Bytes sum(const Schedule& s, const Program& p) {
  Bytes bytes;
  for (const Op& op : s.ops_of(p))
    if (std::holds_alternative<Kind>(op.body)) bytes += bytes_of(op.body);
  return bytes;
}

// Each parameter once: into host memory, and over the pipe what the first stage has not.
TEST(Save, MovesEveryParameterOnceOverEachHop) {
  for (const Combination& k : combinations()) {
    const Schedule s = save_of(k.c, k.more);
    const Program& saves = s.programs[0];
    EXPECT_EQ(saves.ranks, std::vector<RankId>{RankId(0)});
    Bytes host, sent;
    std::map<std::string, int> tensors;
    for (const Buffer& buffer : saves.buffers) {
      if (buffer.space != Space::Pageable) continue;
      EXPECT_TRUE(buffer.resident && s.name(buffer.name).starts_with(kSavedPrefix)) << k.name;
      host += buffer.bytes;
      for (const TensorSpec& tensor : s.layouts[buffer.layout.value].tensors) ++tensors[tensor.name];
    }
    EXPECT_EQ(host, model_bytes(k.c, k.more)) << k.name;
    for (const auto& [name, times] : tensors) EXPECT_EQ(times, 1) << k.name << " " << name;
    EXPECT_EQ(sum<Copy>(s, saves), host) << k.name;
    for (const Program& p : s.programs) {
      sent += sum<Send>(s, p);
      if (&p == &saves) continue;
      EXPECT_EQ(sum<Copy>(s, p), Bytes(0)) << k.name;
      EXPECT_EQ(sum<Recv>(s, p), Bytes(0)) << k.name;
    }
    EXPECT_EQ(sum<Recv>(s, saves), sent) << k.name;
    EXPECT_EQ(sent == Bytes(0), k.c.pp == 1) << k.name;
  }
}

// ---- memory ----------------------------------------------------------------------------------------------------------------

std::int64_t cost(const Op& op) {
  const std::int64_t bytes = bytes_of(op.body).value;
  if (std::holds_alternative<AllGather>(op.body)) return 7 + bytes / 11;
  if (std::holds_alternative<Copy>(op.body)) return 5 + bytes / 13;
  return is_point_to_point(op.body) ? 3 + bytes / 17 : 0;
}

Trace timed(Schedule& s) {
  for (Op& op : s.ops) op.given = Duration(cost(op));
  return test::simulated(s);
}

// The most that is gathered at once: the gathers of a group, or one alone; or the largest received parameter.
Bytes largest_unit(const Schedule& s, const Program& p) {
  Bytes most, group_bytes;
  GroupId group;
  for (const Op& op : s.ops_of(p)) {
    if (std::holds_alternative<Recv>(op.body)) most = std::max(most, bytes_of(op.body));
    if (!std::holds_alternative<AllGather>(op.body)) continue;
    group_bytes = op.group.valid() && op.group == group ? group_bytes + bytes_of(op.body) : bytes_of(op.body);
    group = op.group;
    most = std::max(most, group_bytes);
  }
  return most;
}

// One gathered unit beside the state of training; on the rank that saves perhaps one received parameter instead.
TEST(SaveMemory, IsTheStateAndOneUnit) {
  for (const Combination& k : combinations()) {
    Schedule s = save_of(k.c, k.more);
    const Trace trace = timed(s);
    for (const MemoryPeak& peak : trace.peaks) {
      const Program& p = s.programs[s.program_of_rank()[peak.rank.value].value];
      const bool by_host = peak.curve == Curve::Allocated || peak.curve == Curve::Active;
      if (peak.space == Space::Device && by_host) {
        EXPECT_EQ(peak.bytes, resident_bytes(p, Space::Device) + largest_unit(s, p)) << k.name;
      }
      if (peak.space == Space::Pageable && by_host && &p == &s.programs[0]) {
        EXPECT_EQ(peak.bytes, model_bytes(k.c, k.more)) << k.name;
      }
    }
  }
}

TEST(SaveMemory, StandsBesideTheStateOfAStep) {
  const Case c = level3(2, 2);
  const Schedule save = save_of(c), step = test::compiled(c);
  for (const char* stage : {"pp0", "pp1"})
    for (const char* replica : {"dp0", "dp1"})
      EXPECT_EQ(resident_bytes(program(save, std::string(stage) + replica), Space::Device),
                resident_bytes(program(step, stage), Space::Device));
}

// ---- time ------------------------------------------------------------------------------------------------------------------

template <class Kind>
std::int64_t time_of(const Schedule& s, const Program& p) {
  std::int64_t time = 0;
  for (const Op& op : s.ops_of(p))
    if (std::holds_alternative<Kind>(op.body)) time += cost(op);
  return time;
}

std::int64_t makespan(Schedule& s) { return ns(timed(s).makespan); }

TEST(SaveTime, OfOneStageIsTheSumOfItsGathersAndCopies) {
  for (const char* zero : {R"("level": 0)", R"("level": 2)", R"("level": 3)", R"("level": 3, "ends": "whole")"})
    for (const int dp : {1, 2, 4}) {
      Case c = level3(1, dp);
      c.zero = zero;
      Schedule s = save_of(c);
      const Program& p = s.programs[0];
      const std::int64_t sum = time_of<AllGather>(s, p) + time_of<Copy>(s, p);
      EXPECT_EQ(makespan(s), sum) << zero << " dp" << dp;
    }
}

// Behind the first stage's sum: every later parameter's message and copy, and of the gather of a stage's next unit what the copy of the
// parameter sent last does not hide. A stage's first gather is hidden: it begins with the save.
TEST(SaveTime, OfAPipelineIsTheSumLessTheGathersThatCopiesHide) {
  for (const int pp : {2, 4})
    for (const char* zero : {R"("level": 0)", R"("level": 3)"}) {
      Case c = level3(pp, 2);
      c.zero = zero;
      Schedule s = save_of(c);
      const Program& saves = s.programs[0];
      std::int64_t expected = time_of<AllGather>(s, saves) + time_of<Recv>(s, saves) + time_of<Copy>(s, saves);
      for (const Program& p : s.programs) {
        std::int64_t last_copy = -1;  // of what the unit before sent last: as many bytes
        for (const Op& op : s.ops_of(p)) {
          if (&p == &saves || p.ranks.front().value % 2 != 0) continue;
          if (std::holds_alternative<AllGather>(op.body) && last_copy >= 0) expected += std::max<std::int64_t>(0, cost(op) - last_copy);
          if (std::holds_alternative<Send>(op.body)) last_copy = 5 + bytes_of(op.body).value / 13;
        }
      }
      EXPECT_EQ(makespan(s), expected) << zero << " pp" << pp;
    }
}

// ---- folding ---------------------------------------------------------------------------------------------------------------

TEST(Save, FoldsReplicasThatOnlyGather) {
  for (const char* zero : {R"("level": 0)", R"("level": 3)"}) {
    Case c = level3(2, 4);
    c.zero = zero;
    Schedule s = save_of(c);
    for (Op& op : s.ops) op.given = Duration(cost(op));
    SimulateOptions on, off;
    on.fold = FoldChoice::On, off.fold = FoldChoice::Off;
    const Trace folded = simulate(s, StatedCosts(), nullptr, on), all = simulate(s, StatedCosts(), nullptr, off);
    EXPECT_EQ(folded.simulated.size(), 4u);
    EXPECT_EQ(all.simulated.size(), 8u);
    EXPECT_EQ(folded.makespan, all.makespan);
    std::map<std::pair<std::uint32_t, std::uint32_t>, SimTime> ends;
    for (const Span& span : folded.spans) ends[{span.rank.value, span.op.value}] = span.end;
    for (const Span& span : all.spans) {
      const auto found = ends.find({folded.stand_in[span.rank.value].value, span.op.value});
      ASSERT_NE(found, ends.end());
      EXPECT_EQ(span.end, found->second);
    }
  }
}

}  // namespace
}  // namespace steptwin
