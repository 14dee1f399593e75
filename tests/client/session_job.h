#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/session/session.h"
#include "tests/daemon/daemon_process.h"
#include "tests/support/patience.h"

namespace elixir::testing {

// A job of one rank and two chunks through the client library's session: for tests of how requests
// end, and of what a session says of a failure. Every wait has this limit, for what takes
// milliseconds.
inline constexpr double kSessionLimitS = test::kPatienceS;

// Attached, its weights loaded.
Result<std::unique_ptr<Session>> begin_job(const DaemonProcess& daemon, const std::string& job);
// The next step, of two backward passes, which is finished then.
Status step(Session& session, uint32_t number);
std::vector<float> weights_of(const Session& session);

// A save of a step into a folder below `folder`, which keeps the newest checkpoint alone: the
// request's number, or what it was refused with; how a request ended.
Result<uint32_t> ask_to_save(Session& session, const std::string& folder, const std::string& name,
                             uint32_t after_step);
Status end_of(Session& session, const Result<uint32_t>& number);
Status save(Session& session, const std::string& folder, uint32_t step);
Status load(Session& session, const std::string& path);

}  // namespace elixir::testing
