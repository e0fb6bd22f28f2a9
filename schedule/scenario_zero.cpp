// The section "zero" of a scenario. Two forms do not share their keys: DeepSpeed's rules go by elements, the others by blocks.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/scenario_parts.h"

namespace steptwin {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::int64_t kMostElements = 1'000'000'000'000;

// Keys that say nothing at the stated level.
void refuse_keys_below(ScenarioReading& r, const JsonObject& o, int least, const std::vector<const char*>& keys) {
  for (const char* key : keys) {
    if (!o.has(key) || r.scenario.zero.level >= least) continue;
    r.problems.error_at_key("ZERO", *o.find(key), fmt::format("{} says nothing at ZeRO level {}", in_quotes(key), r.scenario.zero.level),
                            fmt::format("write \"level\": {}, or remove {}", least, in_quotes(key)));
  }
}

struct ElementKey {
  const char* name;
  std::int64_t DeepspeedOptions::*field;
  std::int64_t least;
};
constexpr ElementKey kElementKeys[] = {{"prefetch_bucket_size", &DeepspeedOptions::prefetch_bucket_size, 0},
                                       {"max_live_parameters", &DeepspeedOptions::max_live_parameters, 0},
                                       {"max_reuse_distance", &DeepspeedOptions::max_reuse_distance, 0},
                                       {"param_persistence_threshold", &DeepspeedOptions::param_persistence_threshold, 0},
                                       {"reduce_bucket_size", &DeepspeedOptions::reduce_bucket_size, 1}};

// Keys of the other forms, the rule that DeepSpeed has in their place, and what to write for it.
struct OtherKey {
  const char *name, *rule, *remedy;
};
constexpr OtherKey kOtherKeys[] = {
    {"reshard", "frees parameters by how soon they are used again", "write \"max_reuse_distance\", or remove \"reshard\""},
    {"prefetch", "gathers ahead by elements", "write \"prefetch_bucket_size\", or remove \"prefetch\""},
    {"reduce", "reduces gradients with every micro-batch", "remove \"reduce\""},
    {"enter", "fetches parameters with every use", "remove \"enter\""},
    {"ends", "keeps parameters whole by their size", "write \"param_persistence_threshold\", or remove \"ends\""},
    {"shard_ranks", "shards over all of dp", "remove \"shard_ranks\", or write \"form\": \"fsdp\""}};

void read_deepspeed(ScenarioReading& r, const JsonObject& o) {
  ZeroOptions& zero = r.scenario.zero;
  for (const ElementKey& key : kElementKeys) {
    std::int64_t& value = zero.deepspeed.*key.field;
    value = o.integer(key.name, {key.least, kMostElements}).value_or(value);
  }
  zero.deepspeed.overlap_comm = o.boolean("overlap_comm").value_or(true);
}

// The keys of DeepSpeed's rules beside another form.
void refuse_deepspeed_keys(ScenarioReading& r, const JsonObject& o, const char* form) {
  std::vector<const char*> keys = {"overlap_comm"};
  for (const ElementKey& key : kElementKeys) keys.push_back(key.name);
  for (const char* key : keys) {
    if (!o.has(key)) continue;
    r.problems.error_at_key("ZERO", *o.find(key),
                            fmt::format("{} is a rule of form \"deepspeed\", not of {}", in_quotes(key), in_quotes(form)),
                            fmt::format("write \"form\": \"deepspeed\", or remove {}", in_quotes(key)));
  }
}

void refuse_communicators(ScenarioReading& r, const JsonObject& o, const char* form) {
  if (!o.has("communicators")) return;
  r.problems.error_at_key("ZERO", *o.find("communicators"),
                          fmt::format("form {} runs gathers and reductions on one lane: \"communicators\" says nothing", in_quotes(form)),
                          "write \"form\": \"fsdp\" or \"deepspeed\", or remove \"communicators\"");
}

// The keys of the other forms beside DeepSpeed's.
void refuse_other_keys(ScenarioReading& r, const JsonObject& o) {
  for (const OtherKey& key : kOtherKeys)
    if (o.has(key.name))
      r.problems.error_at_key("ZERO", *o.find(key.name),
                              fmt::format("form \"deepspeed\" {}: {} says nothing", key.rule, in_quotes(key.name)), key.remedy);
  if (r.scenario.zero.level == 3) return;
  r.problems.error_at_key("ZERO", *o.find("form"),
                          fmt::format("form \"deepspeed\" fetches sharded parameters, and level {} shards none", r.scenario.zero.level),
                          "write \"level\": 3, or remove \"form\"");
}

}  // namespace

void read_zero(ScenarioReading& r) {
  const JsonObject o = r.section("zero");
  ZeroOptions& zero = r.scenario.zero;
  zero.level = static_cast<int>(o.integer("level", {0, 3}).value_or(0));
  const std::vector<std::string> forms = {"list", "block", "fsdp", "deepspeed"};  // as ZeroForm
  const std::size_t form = o.choice("form", forms).value_or(0);
  zero.form = static_cast<ZeroForm>(form);
  zero.reshard = o.boolean("reshard").value_or(r.scenario.pipeline.form != PipelineForm::Bmtrain);
  zero.prefetch = o.integer("prefetch", {0, 1024}).value_or(1);
  const bool step = o.choice("reduce", {"micro_batch", "step"}).value_or(zero.level == 1 ? 1 : 0) == 1;
  zero.reduce = step ? ZeroReduce::Step : ZeroReduce::MicroBatch;
  zero.enter = o.choice("enter", {"micro_batch", "step"}).value_or(0) == 1 ? ZeroEnter::Step : ZeroEnter::MicroBatch;
  zero.ends = o.choice("ends", {"sharded", "whole"}).value_or(0) == 1 ? ZeroEnds::Whole : ZeroEnds::Sharded;
  zero.shard_ranks = o.integer("shard_ranks", {1, kMostRanks}).value_or(0);
  zero.communicators = o.integer("communicators", {1, 2}).value_or(zero.form == ZeroForm::Deepspeed ? 1 : 2);
  read_deepspeed(r, o);
  if (zero.form == ZeroForm::Deepspeed) return refuse_other_keys(r, o);
  refuse_deepspeed_keys(r, o, forms[form].c_str());
  if (zero.form != ZeroForm::Fsdp) refuse_communicators(r, o, forms[form].c_str());
  refuse_keys_below(r, o, 1, {"reduce", "ends", "shard_ranks"});
  refuse_keys_below(r, o, 2, {"form", "prefetch"});
  refuse_keys_below(r, o, 3, {"reshard", "enter"});
}

}  // namespace steptwin
