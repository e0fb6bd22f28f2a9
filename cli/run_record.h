// The row of a run in the store while it happens: begun before the simulation, finished with its trace, or marked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/session.h"
#include "cli/subject.h"
#include "sim/simulate.h"
#include "traces/store.h"

namespace steptwin {

RunInfo run_info(const Subject& subject, const SubjectRequest& request, const Options& options, const SimulateOptions& simulation,
                 const std::string& cost_model, const Session& session);

class RunRecord {
 public:
  // Opens (or creates) the database, marks runs of dead processes, inserts the run as running. Throws EnvironmentError.
  RunRecord(const std::string& path, const RunInfo& info, const Session& session);
  void finish(const Schedule& schedule, const std::string& digest, const Trace& trace, const std::vector<Metric>& metrics);
  void interrupted();
  // After a failure that is already on its way to the user: marks the run as failed if the store still works.
  void failed(const std::string& what) noexcept;
  const Store::RunKey& key() const { return key_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Store store_;
  Store::RunKey key_;
};

}  // namespace steptwin
