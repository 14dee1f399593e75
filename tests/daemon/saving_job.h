#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/listing.h"
#include "daemon/job.h"
#include "tests/daemon/fake_folders.h"
#include "tests/daemon/job_fixture.h"
#include "tests/support/outcomes.h"
#include "tests/support/temporary_folder.h"

namespace elixir::testing {

inline constexpr uint64_t kPlenty = uint64_t{1} << 30;  // bytes for copies of all chunks

// The chunk lengths of tests that save with one and load with another. Some parameters of
// make_long_model() are longer than a chunk of these.
inline constexpr uint64_t kChunkLengths[] = {128 * 37 * 3, 128 * 37, 128 * 11};

// make_long_model(), whose first parameter has no gradient in step 1: its own count of updates must
// come back to each of its chunks.
inline FakeModel make_uneven_model(ComputeType type, uint32_t ranks, uint64_t chunk_numel) {
  FakeModel model = make_long_model(type, ranks, chunk_numel);
  model.unused = [](uint32_t place, uint32_t step) { return place == 0 && step == 1; };
  return model;
}

// A rank's request for a save.
struct Asking {
  std::string name = "step-000000001";
  std::optional<uint64_t> shadow_bytes = {};
  bool drop_if_busy = false;
  bool model = true;                              // false: states alone
  std::vector<std::vector<int64_t>> shapes = {};  // empty: the model's shapes
};

// A job that trains, and a folder to save into.
struct SavingJob : InProcessJob {
  explicit SavingJob(const Options& options = {}) : InProcessJob(options), reference(model) {
    start();
  }

  // Makes a step of all ranks, as far as nothing holds it up.
  void make_step(uint32_t step) {
    if (!job.options().rules.rings_all()) return InProcessJob::make_step(step);
    for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) {
      open(rank, step);
      ASSERT_TRUE(publish(rank, step).ok());
      run_workers();
    }
    post_all(step);
    run_workers();
  }
  void train_to(uint32_t last) {
    for (uint32_t step = finished_step() + 1; step <= last; ++step) {
      make_step(step);
      reference.step(make_record(step, model.shape.ranks));
    }
  }

  daemon::SavePart part(uint32_t rank, uint32_t number, std::optional<uint64_t> shadow_bytes) {
    daemon::SavePart part;
    part.number = number;
    part.parent = open_folder(folder.path());
    part.details.shadow_bytes = shadow_bytes;
    part.details.manifest.step = header(rank).posted_step.load();
    part.details.shapes = shapes_of(model.places);
    const std::string own = fmt::format("of rank {}", rank);
    part.details.files.push_back({fmt::format("user/rank-{}.bin", rank), {}});
    for (const char c : own) part.details.files.back().bytes.push_back(std::byte(c));
    if (model.shape.n_gpu_chunks > 0) {
      part.staging.reset(::dup(
          must(shm::Segment::create("elixir-test-staging", model.shape.staging_bytes())).fd()));
    }
    return part;
  }
  // The job receives the rank's request for a save.
  void ask(uint32_t rank, uint32_t after_step, const Asking& asking = {}) {
    shm::SaveFolder message{};
    message.number = ++this->rank(rank).requests_come;
    message.after_step = after_step;
    message.drop_if_busy = asking.drop_if_busy ? 1 : 0;
    shm::set_text(message.name, asking.name);
    daemon::SavePart own = part(rank, message.number, asking.shadow_bytes);
    if (!asking.shapes.empty()) own.details.shapes = asking.shapes;
    own.details.manifest.states_alone = !asking.model;
    if (!asking.model) own.details.manifest.left_out.emplace();
    job.heard_save(this->rank(rank), message, std::move(own));
  }
  void ask_all(uint32_t after_step, const Asking& asking = {}) {
    for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) ask(rank, after_step, asking);
  }
  // Trains up to the step and begins a save of it.
  daemon::Snapshot& save_after(uint32_t step, std::optional<uint64_t> shadow_bytes = {}) {
    train_to(step);
    ask_all(step, {.name = checkpoints::step_name(step), .shadow_bytes = shadow_bytes});
    ELIXIR_CHECK(ports.saving != nullptr, "no save has begun");
    return *ports.saving->snapshot;
  }
  // A writer takes and writes all remaining items. `look` sees each item before it is written.
  void write_chunks(daemon::Snapshot& snapshot,
                    const std::function<void(const daemon::Snapshot::Item&)>& look) {
    while (const std::optional<daemon::Snapshot::Item> item = snapshot.next()) {
      look(*item);
      snapshot.written(item->chunk);
      job.saving_moved();
      run_workers();
    }
    EXPECT_TRUE(snapshot.all_written());
  }
  // Ends the save as if its writers were done.
  void end_save(Status status = Status()) {
    const std::shared_ptr<daemon::Saving> saving = std::exchange(ports.saving, nullptr);
    ASSERT_NE(saving, nullptr);
    saving->status = std::move(status);
    saving->end_ns = saving->begin_ns;
    saving->snapshot->end();
    job.save_over();
  }
  // Writes the save, as background threads would.
  void write_it() {
    const std::shared_ptr<daemon::Saving> saving = std::exchange(ports.saving, nullptr);
    ASSERT_NE(saving, nullptr);
    daemon::write_save(*saving);
    job.save_over();
  }
  const shm::FolderResult& result(uint32_t rank, uint32_t number) {
    return this->rank(rank).memory->folder_result(number);
  }
  void expect_result(uint32_t rank, uint32_t number, Code code, const std::string& needle = "") {
    const shm::FolderResult& result = this->result(rank, number);
    expect_refused(Status(static_cast<Code>(result.code), result.text), code, {needle});
  }

  // All arrays of a rank's shard of a chunk, in FP32.
  std::vector<std::byte> arrays(const daemon::Snapshot::Arrays& of) const {
    const shm::Shape& shape = model.shape;
    std::vector<std::byte> bytes(of.param, of.param + shape.shard_bytes());
    for (const std::byte* moment : of.moments) {
      bytes.insert(bytes.end(), moment, moment + shape.shard_numel() * sizeof(float));
    }
    return bytes;
  }
  std::vector<std::byte> live(uint32_t chunk, uint32_t rank) {
    const daemon::SessionMemory& memory = *this->rank(rank).memory;
    const uint32_t slot = this->rank(0).memory->chunk_record(chunk).slot.load();
    daemon::Snapshot::Arrays of;
    of.param = memory.param(slot, 0);
    for (uint32_t i = 0; i < 2; ++i) {
      of.moments[i] = reinterpret_cast<const std::byte*>(memory.moment(i, slot, 0));
    }
    return arrays(of);
  }

  const TemporaryFolder folder;
  Reference reference;
};

}  // namespace elixir::testing
