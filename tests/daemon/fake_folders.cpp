#include "tests/daemon/fake_folders.h"

#include <fcntl.h>

#include "tests/support/outcomes.h"

namespace elixir::testing {

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

std::vector<std::vector<int64_t>> shapes_of(const std::vector<shm::ParameterPlace>& places) {
  std::vector<std::vector<int64_t>> shapes;
  for (const shm::ParameterPlace& place : places) {
    shapes.push_back({static_cast<int64_t>(place.numel)});
  }
  return shapes;
}

Status step_as(FakeJob& job, uint32_t step, uint32_t of_step) {
  const FakeModel& model = job.model();
  for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) {
    for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
      const auto grads = fake_gradient(model, rank, chunk, of_step);
      ELIXIR_RETURN_IF_ERROR(job.rank(rank).wait_param(chunk, step - 1));
      job.rank(rank).write_grads(chunk, grads.data(), step);
    }
  }
  for (auto& rank : job.ranks()) {
    shm::StepRecord record = make_record(of_step, model.shape.ranks);
    record.step = step;
    rank->post(record);
  }
  ELIXIR_RETURN_IF_ERROR(job.swing(step));
  return job.wait_finished(step);
}

uint32_t FakeTrainer::save(const std::string& parent, const std::string& name, uint32_t after_step,
                           checkpoints::Details details) {
  if (options_.rank == 0) {
    details.shapes = shapes_of(options_.places);
    details.manifest.step = after_step;
  }
  const UniqueFd fd = must(checkpoints::write_details(details));
  shm::SaveFolder message{};
  message.number = ++requests_;
  message.after_step = after_step;
  message.details_bytes = checkpoints::encode_details(details).size();
  shm::set_text(message.name, name);
  const UniqueFd folder = open_folder(parent);
  std::vector<int> fds = {folder.get(), fd.get()};
  if (options_.shape.n_gpu_chunks > 0) {
    staging_ = std::make_unique<shm::Segment>(
        must(shm::Segment::create("elixir-test-staging", options_.shape.staging_bytes())));
    message.flags |= shm::kHasStaging;
    fds.push_back(staging_->fd());
  }
  send_request(message, fds);
  return message.number;
}

void FakeTrainer::stage(uint32_t number, uint32_t chunk) {
  shm::StagedChunk message{};
  message.number = number;
  message.chunk = chunk;
  send(message);
}

uint32_t FakeTrainer::load(const std::string& path, bool states) {
  checkpoints::Details details;
  details.shapes = shapes_of(options_.places);
  const UniqueFd fd = must(checkpoints::write_details(details));
  shm::LoadFolder message{};
  message.number = ++requests_;
  message.states = states ? 1 : 0;
  message.details_bytes = checkpoints::encode_details(details).size();
  shm::set_text(message.path, path);
  const UniqueFd folder = open_folder(path);
  const int fds[] = {folder.get(), fd.get()};
  send_request(message, fds);
  return message.number;
}

const shm::FolderResult& FakeTrainer::folder_result(uint32_t number) const {
  return reinterpret_cast<const shm::FolderResult*>(
      control_->data() + options_.shape.folder_results_offset())[number % shm::kFolderRing];
}

Status FakeTrainer::wait_heard(uint32_t number) {
  ELIXIR_RETURN_IF_ERROR(
      wait_word(header().heard_request, header().waiters, number, "heard_request"));
  const shm::FolderResult& result = folder_result(number);
  return result.refused == 0 ? Status() : Status(static_cast<Code>(result.code), result.text);
}

Status FakeTrainer::wait_over(uint32_t number) {
  ELIXIR_RETURN_IF_ERROR(
      wait_word(header().ended_request, header().waiters, number, "ended_request"));
  const shm::FolderResult& result = folder_result(number);
  return Status(static_cast<Code>(result.code), result.text);
}

}  // namespace elixir::testing
