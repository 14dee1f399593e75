#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/session/session.h"
#include "tests/daemon/daemon_process.h"
#include "tests/support/patience.h"

namespace elixir::testing {

// A job of one rank and two chunks through the client library's session. Tests see with it how
// requests end, and how a session reports a failure. Every wait has this limit, although it should
// take milliseconds.
inline constexpr double kSessionLimitS = test::kPatienceS;

// Attaches and loads the weights.
Result<std::unique_ptr<Session>> begin_job(const DaemonProcess& daemon, const std::string& job);
// Makes the next step, of two backward passes, and waits until it is finished.
Status step(Session& session, uint32_t number);
std::vector<float> weights_of(const Session& session);

// ask_to_save() asks for a save of a step into a folder below `folder`, which keeps only the newest
// checkpoint. It returns the request's number, or the error that rejected it. end_of() returns how
// the request ended.
Result<uint32_t> ask_to_save(Session& session, const std::string& folder, const std::string& name,
                             uint32_t after_step);
Status end_of(Session& session, const Result<uint32_t>& number);
Status save(Session& session, const std::string& folder, uint32_t step);
Status load(Session& session, const std::string& path);

}  // namespace elixir::testing
