// The mechanisms of the table, one per file of the same name.
#pragma once

#include "schedule/mechanisms/mechanism.h"

namespace steptwin {

bool run_ahead_active(const Plan& plan);
std::unique_ptr<Mechanism> make_run_ahead(const Plan& plan, ScheduleBuilder& builder);
bool p2p_active(const Plan& plan);
std::unique_ptr<Mechanism> make_p2p(const Plan& plan, ScheduleBuilder& builder);
bool batch_pipeline_active(const Plan& plan);
std::unique_ptr<Mechanism> make_batch_pipeline(const Plan& plan, ScheduleBuilder& builder);
CommId batch_communicator(ScheduleBuilder& builder);  // pp.batch, declared when first asked for
bool zero_active(const Plan& plan);
std::unique_ptr<Mechanism> make_zero(const Plan& plan, ScheduleBuilder& builder);
bool deepspeed_zero_active(const Plan& plan);
std::unique_ptr<Mechanism> make_deepspeed_zero(const Plan& plan, ScheduleBuilder& builder);
bool data_parallel_active(const Plan& plan);
std::unique_ptr<Mechanism> make_data_parallel(const Plan& plan, ScheduleBuilder& builder);
bool tied_embedding_active(const Plan& plan);
std::unique_ptr<Mechanism> make_tied_embedding(const Plan& plan, ScheduleBuilder& builder);
bool overflow_active(const Plan& plan);
std::unique_ptr<Mechanism> make_overflow(const Plan& plan, ScheduleBuilder& builder);
bool hidden_states_active(const Plan& plan);
std::unique_ptr<Mechanism> make_hidden_states(const Plan& plan, ScheduleBuilder& builder);
bool gradient_scale_active(const Plan& plan);
std::unique_ptr<Mechanism> make_gradient_scale(const Plan& plan, ScheduleBuilder& builder);
bool optimizer_active(const Plan& plan);
std::unique_ptr<Mechanism> make_optimizer(const Plan& plan, ScheduleBuilder& builder);

}  // namespace steptwin
