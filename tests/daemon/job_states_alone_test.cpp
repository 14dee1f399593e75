// One job in process (job_test.cpp): its states go to a folder without the parameters, and come
// from one to a job that has the values already.

#include <sys/eventfd.h>
#include <unistd.h>

#include <limits>
#include <thread>
#include <tuple>

#include "base/compute_type_names.h"
#include "checkpoint/left_out.h"
#include "checkpoint/stored_folder.h"
#include "shm/parameter_table.h"
#include "tests/daemon/saving_job.h"
#include "tests/support/outcomes.h"
#include "tests/support/patience.h"

namespace elixir::daemon {
namespace {

using namespace testing;
using test::eventually;

// What the manifest must say of parameters with these values.
checkpoints::LeftOut expected_of(const FakeModel& model, const Reference& reference) {
  const uint64_t element = element_bytes(model.shape.type);
  checkpoints::LeftOut all;
  for (const shm::ParameterPlace& place : model.places) {
    ++all.parameters;
    all.bytes += place.numel * element;
    const shm::ChunkRun run = shm::chunks_of(place, model.shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      const shm::ParameterPart part = shm::part_in(place, model.shape, chunk);
      all.hash += checkpoints::left_out_hash(
          place.name, part.first, element,
          std::span(reference.param(chunk)).subspan(part.offset * element, part.numel * element));
    }
  }
  return all;
}

checkpoints::Manifest manifest_in(const std::string& path) {
  return *must(checkpoints::open_stored_folder(path)).manifest;
}

void ask_for_states(SavingJob& world, uint32_t step, std::optional<uint64_t> shadow_bytes = {}) {
  world.train_to(step);
  world.ask_all(step, {.name = checkpoints::step_name(step) + "-states",
                       .shadow_bytes = shadow_bytes,
                       .model = false});
  ASSERT_NE(world.ports.saving, nullptr) << "no save has begun";
}

// The first rank asks; a background thread reads.
Status load_into(InProcessJob& job, const FakeModel& model, const std::string& path, bool states) {
  shm::LoadFolder message{};
  message.number = ++job.rank(0).requests_come;
  message.states = states ? 1 : 0;
  shm::set_text(message.path, path);
  checkpoints::Details details;
  details.shapes = shapes_of(model.places);
  job.job.heard_load(job.rank(0), message, std::move(details), open_folder(path));
  const std::shared_ptr<Restoring> restoring = std::exchange(job.ports.restoring, nullptr);
  if (restoring == nullptr) return error(Code::kInternal, "nothing was read");
  read_restore(*restoring);
  const Status status = restoring->status;
  job.job.restore_over();
  return status;
}

class StatesAlone : public ::testing::TestWithParam<std::tuple<ComputeType, uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(TypesAndLengths, StatesAlone,
                         ::testing::Combine(::testing::Values(ComputeType::kFp32,
                                                              ComputeType::kBf16,
                                                              ComputeType::kFp16),
                                            ::testing::ValuesIn(kChunkLengths)));

TEST_P(StatesAlone, CompleteTheValuesToTheBitForAnyRanksAndChunkLengths) {
  const auto& [type, chunk_numel] = GetParam();
  const auto model_of = [type = type](uint32_t ranks, uint64_t numel) {
    return make_uneven_model(type, ranks, numel);
  };
  SavingJob world({.model = model_of(2, chunk_numel)});
  world.save_after(3);
  world.write_it();
  ask_for_states(world, 3);
  world.write_it();
  const std::string whole = world.folder.path("step-000000003");
  const std::string states = world.folder.path("step-000000003-states");
  const checkpoints::StoredFolder folder = must(checkpoints::open_stored_folder(states));
  EXPECT_TRUE(folder.model.empty());
  for (const checkpoints::ManifestFile& file : folder.manifest->files) {
    EXPECT_TRUE(file.name.starts_with("optimizer/") || file.name.starts_with("user/")) << file.name;
  }
  EXPECT_EQ(*folder.manifest->left_out, expected_of(world.model, world.reference));
  for (const uint64_t to : kChunkLengths) {
    Reference saved(model_of(2, to));
    for (uint32_t step = 1; step <= 3; ++step) saved.step(make_record(step, 2));
    for (const uint32_t ranks : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, from {} to {} elements a chunk and {} ranks",
                               compute_type_name(type), chunk_numel, to, ranks));
      FakeModel model = model_of(ranks, to);
      model.unused = {};
      InProcessJob other({.model = model});
      other.attach();
      must(load_into(other, model, whole, /*states=*/false));
      EXPECT_FALSE(other.equals(saved)) << "the control: values alone are a whole run";
      must(load_into(other, model, states, /*states=*/true));
      must(other.trainers.compare(saved));
    }
  }
}

TEST_P(StatesAlone, ChangeNothingBesideOtherValues) {
  const auto& [type, chunk_numel] = GetParam();
  SavingJob world({.model = make_long_model(type, 2, chunk_numel)});
  world.save_after(2);
  world.write_it();
  ask_for_states(world, 2);
  world.write_it();
  const std::string states = world.folder.path("step-000000002-states");
  const Reference saved = world.reference;
  world.train_to(4);
  expect_refused(load_into(world, world.model, states, /*states=*/true), Code::kBadInput,
                 {states, "holds states alone", "load the values that were saved beside it first"});
  expect_refused(load_into(world, world.model, states, /*states=*/false), Code::kBadInput,
                 {states, "holds states alone, without the model"});
  EXPECT_EQ(world.job.phase(), JobPhase::kTraining);
  EXPECT_TRUE(world.equals(world.reference));
  world.train_to(5);
  EXPECT_TRUE(world.equals(world.reference));
  must(load_into(world, world.model, world.folder.path("step-000000002"), /*states=*/false));
  must(load_into(world, world.model, states, /*states=*/true));
  must(world.trainers.compare(saved));
}

// The disk is so slow that the next step's updates come while a writer has a chunk in hand. Then it
// puts the chunk back and takes it again, from its copy: the control is that all chunks were
// copied, and that somebody was woken for one of them. Whether this is so depends on the machine's
// threads, so it is tried until it was.
TEST(StatesAloneBesideTraining, AChunkThatWasPutBackCountsOnceAndAsItWas) {
  FakeModel model = make_model(ComputeType::kBf16, 2, 3, 1024);
  bool hit = false;
  for (uint32_t round = 0; round < 200 && !hit; ++round) {
    SavingJob world({.model = model});
    ask_for_states(world, 2, kPlenty);
    const checkpoints::LeftOut expected = expected_of(world.model, world.reference);
    const std::shared_ptr<Saving> saving = std::exchange(world.ports.saving, nullptr);
    const UniqueFd wakes(::eventfd(0, EFD_NONBLOCK));
    saving->wake_fd = wakes.get();
    saving->rate_bytes_s = 100'000;
    uint64_t woken = 0;
    std::thread writer([&] { write_save(*saving); });
    // The headers are on their way.
    EXPECT_TRUE(eventually([&] { return saving->done_bytes.load() > 0; }));
    world.make_step(2 + 1);
    EXPECT_TRUE(eventually([&] {
      world.job.saving_moved();
      world.run_workers();
      return world.finished_step() == 3;
    }));
    writer.join();
    ASSERT_TRUE(saving->status.ok()) << saving->status.message();
    EXPECT_EQ(::read(wakes.get(), &woken, sizeof woken), static_cast<ssize_t>(sizeof woken));
    hit = woken > 1 && saving->snapshot->shadow_peak_bytes() == saving->snapshot->shadow_bytes();
    world.job.save_over();
    EXPECT_EQ(*manifest_in(world.folder.path("step-000000002-states")).left_out, expected);
    world.reference.step(make_record(3, 2));
    EXPECT_TRUE(world.equals(world.reference));
    EXPECT_NE(expected_of(world.model, world.reference), expected) << "the control: as updated";
  }
  EXPECT_TRUE(hit) << "no chunk was put back: no test";
}

TEST(StatesAloneBesideTraining, ValuesThatAreNotFiniteAreCountedThoughTheyAreNotWritten) {
  SavingJob world({.model = make_model(ComputeType::kFp32, 1, 2, 1024)});
  world.train_to(1);
  auto* const values = reinterpret_cast<float*>(world.rank(0).memory->param(0, 0));
  values[3] = std::numeric_limits<float>::infinity();
  ask_for_states(world, 1);
  world.write_it();
  EXPECT_EQ(manifest_in(world.folder.path("step-000000001-states")).health->not_finite, 1u);
}

}  // namespace
}  // namespace elixir::daemon
