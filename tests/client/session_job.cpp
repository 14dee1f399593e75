#include "tests/client/session_job.h"

#include <cmath>

#include "checkpoint/listing.h"
#include "tests/client/verdict.h"
#include "tests/daemon/fake_folders.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kChunkNumel = 1280;
constexpr uint32_t kChunks = 2;

checkpoints::Details details_of(const Session& session, uint64_t step) {
  checkpoints::Details details;
  const shm::Shape& shape = session.shape();
  details.shapes.assign(shape.n_parameters, {static_cast<int64_t>(shape.chunk_numel)});
  details.manifest.step = step;
  details.manifest.groups = {{.lr = 0.01, .weight_decay = 0, .hyper = {0.9, 0.999, 1e-8}}};
  details.keep.last = 1;
  return details;
}

Status load_values(Session& session) {
  std::vector<float> values(kChunkNumel);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    for (uint64_t i = 0; i < kChunkNumel; ++i) values[i] = std::sin(static_cast<float>(i + chunk));
    ELIXIR_RETURN_IF_ERROR(session.load_chunk(chunk, values.data()));
  }
  return session.await_loaded();
}

}  // namespace

Result<std::unique_ptr<Session>> begin_job(const DaemonProcess& daemon, const std::string& job) {
  std::vector<shm::ParameterPlace> places;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    places.push_back({"p" + std::to_string(chunk), chunk, 0, kChunkNumel});
  }
  SessionOptions options;
  options.runtime_dir = daemon.folder().path;
  options.job = job;
  options.start_daemon = false;
  options.request_timeout_s = options.ranks_timeout_s = kSessionLimitS;
  const shm::Shape shape{.type = ComputeType::kFp32,
                         .n_chunks = kChunks,
                         .n_parameters = kChunks,
                         .chunk_numel = kChunkNumel};
  auto session = Session::attach(shape, places, options);
  if (session.ok()) ELIXIR_RETURN_IF_ERROR(load_values(**session));
  return session;
}

// Of the first pass nothing was said before: the sums are filled between the two.
Status step(Session& session, uint32_t number) {
  for (const uint32_t pass : {1u, 2u}) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      if (pass > 1) {
        ELIXIR_RETURN_IF_ERROR(session.request_sum(chunk));
        ELIXIR_RETURN_IF_ERROR(session.wait_taken(chunk));
      }
      auto* const slot = reinterpret_cast<float*>(session.grad_slot(chunk));
      for (uint64_t i = 0; i < kChunkNumel; ++i) slot[i] = std::cos(static_cast<float>(i * pass));
      session.say_gradient(number, chunk, 0);
      ELIXIR_RETURN_IF_ERROR(session.publish_grad(chunk, {.step = number, .micro_step = pass}));
    }
  }
  ELIXIR_RETURN_IF_ERROR(session.post_step(test::verdict_on(number)));
  return session.wait_finished(number);
}

std::vector<float> weights_of(const Session& session) {
  std::vector<float> weights;
  for (uint32_t chunk = 0; chunk < session.shape().n_chunks; ++chunk) {
    const auto* const first = reinterpret_cast<const float*>(session.param_shard(chunk, 0));
    weights.insert(weights.end(), first, first + session.shape().chunk_numel);
  }
  return weights;
}

Result<uint32_t> ask_to_save(Session& session, const std::string& folder, const std::string& name,
                             uint32_t after_step) {
  const UniqueFd parent = open_folder(folder);
  return session.save_folder({.parent = parent.get(),
                              .name = name,
                              .after_step = after_step,
                              .details = details_of(session, after_step)});
}

Status end_of(Session& session, const Result<uint32_t>& number) {
  if (!number.ok()) return number.status();
  const Result<bool> ended = session.folder_ended_within(*number, kSessionLimitS);
  if (!ended.ok()) return ended.status();
  if (!*ended) return error(Code::kTimedOut, "a request of {:.0f} s", kSessionLimitS);
  return session.folder_result(*number).status;
}

Status save(Session& session, const std::string& folder, uint32_t step) {
  return end_of(session, ask_to_save(session, folder, checkpoints::step_name(step), step));
}

Status load(Session& session, const std::string& path) {
  ELIXIR_RETURN_IF_ERROR(session.await_loaded());
  const UniqueFd folder = open_folder(path);
  checkpoints::Details details;
  details.shapes = details_of(session, 0).shapes;
  ELIXIR_RETURN_IF_ERROR(end_of(
      session, session.load_folder({.folder = folder.get(), .path = path, .details = details})));
  return session.await_loaded();
}

}  // namespace elixir::testing
