// One job in process (job_test.cpp): its states go to a folder, and come from one.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "base/compute_type_names.h"
#include "checkpoint/listing.h"
#include "daemon/job.h"
#include "tests/daemon/saving_job.h"
#include "tests/support/outcomes.h"

namespace elixir::daemon {
namespace {

using namespace testing;

const Status kBrokenOff = error(Code::kUnavailable, "broken off");

uint64_t chunk_bytes(const FakeModel& model) {
  return model.shape.image_bytes() * model.shape.ranks;
}

// With any budget for copies: none, one chunk's, all.
class WhatIsWritten : public ::testing::TestWithParam<std::tuple<std::string, uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(ModesAndBudgets, WhatIsWritten,
                         ::testing::Combine(::testing::Values("Deferred", "Immediate", "Early"),
                                            ::testing::Values(0, 1, 100)));

TEST_P(WhatIsWritten, IsTheStepThatItIsOfThoughTheNextOneIsMade) {
  const auto& [mode, copies] = GetParam();
  FakeModel model = make_model(ComputeType::kFp32, 2, 3, 1024);
  model.shape.n_spare_slots = mode == "Early" ? 2 : 0;
  SavingJob world({.model = model,
                   .immediate = mode == "Immediate" ? 1u : 0u,
                   .early = mode == "Early" ? 1u : 0u});
  const uint32_t n_chunks = model.shape.n_chunks;
  world.train_to(1);
  std::vector<std::vector<std::byte>> expected;
  for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
    for (uint32_t rank = 0; rank < 2; ++rank) expected.push_back(world.live(chunk, rank));
  }
  Snapshot& snapshot = world.save_after(1, copies * chunk_bytes(model));
  world.make_step(2);
  // What has no copy is held, and with it the step.
  const bool all_copied = copies >= n_chunks;
  if (mode == "Deferred") {
    EXPECT_EQ(world.finished_step(), all_copied ? 2u : 1u);
    EXPECT_EQ(world.header(0).committed_step.load(), 2u);
  }
  uint32_t changed = 0;
  world.write_chunks(snapshot, [&](const Snapshot::Item& item) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const std::vector<std::byte>& then = expected[item.chunk * 2 + rank];
      EXPECT_EQ(world.arrays(item.ranks[rank]), then) << "chunk " << item.chunk;
      changed += world.live(item.chunk, rank) != then ? 1 : 0;
    }
  });
  // The control: without a copy these would not have been what they were.
  if (mode != "Early") {
    EXPECT_EQ(changed > 0, copies > 0);
  }
  EXPECT_EQ(world.finished_step(), 2u);
  world.end_save();
  world.reference.step(make_record(2, 2));
  EXPECT_TRUE(world.equals(world.reference));
  world.train_to(4);
  EXPECT_TRUE(world.equals(world.reference));
  EXPECT_LE(world.result(0, 1).shadow_peak_bytes, copies * chunk_bytes(model));
  if (mode == "Deferred") {
    EXPECT_EQ(world.result(0, 1).stall_ns > 0, !all_copied);
  }
}

TEST(JobSaves, ChunksThatAWriterHasInHandAreNotUpdated) {
  SavingJob world;
  Snapshot& snapshot = world.save_after(1, 0);
  const std::optional<Snapshot::Item> first = snapshot.next();
  ASSERT_TRUE(first.has_value());
  const std::vector<std::byte> then = world.live(first->chunk, 0);
  world.make_step(2);
  EXPECT_EQ(world.live(first->chunk, 0), then);
  EXPECT_EQ(world.ports.submitted, nullptr);
  EXPECT_TRUE(snapshot.written(first->chunk)) << "nobody would wake the event loop";
  world.job.saving_moved();
  world.run_workers();
  EXPECT_NE(world.live(first->chunk, 0), then);
  world.end_save(error(Code::kResourceExhausted, "disk full"));
  // Whatever became of it, training goes on.
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 2u);
  EXPECT_EQ(world.job.saves().failed, 1u);
  EXPECT_EQ(world.job.saves().error_last, "disk full");
  EXPECT_TRUE(world.ports.told.empty());
}

TEST(JobSaves, AWriterPutsAChunkBackWhoseUpdateWaitsWhileThereIsRoomForACopy) {
  SavingJob world;
  Snapshot& snapshot = world.save_after(1, kPlenty);
  const std::optional<Snapshot::Item> first = snapshot.next();
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(snapshot.put_back_if_wanted(first->chunk)) << "nobody waits";
  const std::vector<std::byte> then = world.live(first->chunk, 0);
  world.make_step(2);
  EXPECT_EQ(world.finished_step(), 1u) << "all but that one are updated";
  EXPECT_TRUE(snapshot.put_back_if_wanted(first->chunk));
  // The others have copies: none is taken twice, and the one that was put back is nobody's for now.
  for (uint32_t left = 2; left > 0; --left) {
    const std::optional<Snapshot::Item> item = snapshot.next();
    ASSERT_TRUE(item.has_value());
    EXPECT_NE(item->chunk, first->chunk);
    snapshot.written(item->chunk);
  }
  world.job.saving_moved();
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 2u);
  uint32_t seen = 0;
  world.write_chunks(snapshot, [&](const Snapshot::Item& item) {
    EXPECT_EQ(item.chunk, first->chunk);
    EXPECT_EQ(world.arrays(item.ranks[0]), then);
    ++seen;
  });
  EXPECT_EQ(seen, 1u);
  world.end_save();
}

TEST(JobSaves, ASaveBeginsOnceEveryRankHasAskedAndTheStepIsFinished) {
  SavingJob world;
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.post(0, 1);
  world.ask(0, 1);
  EXPECT_EQ(world.header(0).heard_request.load(), 1u);
  EXPECT_EQ(world.ports.saving, nullptr);
  world.post(1, 1);
  world.ask(1, 1);
  EXPECT_EQ(world.ports.saving, nullptr) << "the step is in the workers' hands";
  world.run_workers();
  EXPECT_NE(world.ports.saving, nullptr);
  EXPECT_EQ(world.header(0).ended_request.load(), 0u);
  world.write_it();
  EXPECT_EQ(world.header(0).ended_request.load(), 1u);
  EXPECT_EQ(world.header(1).ended_request.load(), 1u);
  world.expect_result(1, 1, Code::kOk);
  EXPECT_EQ(world.result(1, 1).step, 1u);
  EXPECT_GT(world.result(1, 1).bytes.load(), 3 * 1024 * 10u);
}

TEST(JobSaves, ARankThatGoesOnWithoutSavingDropsTheSaveAndTrainingGoesOn) {
  SavingJob world;
  world.train_to(1);
  world.ask(0, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 2);
  world.post(1, 2);
  EXPECT_EQ(world.header(0).ended_request.load(), 1u);
  world.expect_result(0, 1, Code::kInvalidArgument, "rank 1 called step() and not save()");
  world.post(0, 2);
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 2u);
}

TEST(JobSaves, ASecondSaveWaitsForTheFirstOneAndHoldsTheNextStep) {
  SavingJob world;
  world.save_after(1, kPlenty);
  const std::shared_ptr<Saving> first = world.ports.saving;
  world.save_after(2);
  EXPECT_EQ(world.ports.saving, first);
  world.make_step(3);
  EXPECT_EQ(world.header(0).committed_step.load(), 2u) << "the second would be of step 3";
  world.end_save();
  ASSERT_NE(world.ports.saving, nullptr);
  EXPECT_EQ(world.ports.saving->name, "step-000000002");
  world.run_workers();
  EXPECT_EQ(world.header(0).committed_step.load(), 3u);
  world.end_save();
  EXPECT_GT(world.result(0, 2).stall_ns, 0u);
}

TEST(JobSaves, AskedToItIsDroppedInstead) {
  SavingJob world;
  world.save_after(1);
  world.ask(0, 1, {.name = "other", .drop_if_busy = true});
  world.expect_result(0, 2, Code::kUnavailable);
  EXPECT_EQ(world.header(0).heard_request.load(), 2u);
  EXPECT_EQ(world.header(0).ended_request.load(), 0u) << "the first is not over";
  EXPECT_EQ(world.job.saves().dropped, 1u);
  world.end_save();
  EXPECT_EQ(world.header(0).ended_request.load(), 2u);
}

TEST(JobSaves, NamesThatLeaveTheFolderAndStepsThatAreNotTheLastAreRefused) {
  SavingJob world;
  world.train_to(1);
  for (const char* name : {"..", ".", "a/b", "", "/etc", "a b"}) {
    SCOPED_TRACE(name);
    world.ask(0, 1, {.name = name});
    world.expect_result(0, world.rank(0).requests_come, Code::kInvalidArgument);
  }
  world.ask(0, 2);
  world.expect_result(0, world.rank(0).requests_come, Code::kProtocol);
  EXPECT_EQ(world.header(0).ended_request.load(), 7u);
  world.train_to(2);
}

// Else some would wait in a save for others that go on.
TEST(JobSaves, WhatOneRankIsRefusedAllAre) {
  SavingJob world;
  world.train_to(1);
  world.ask(0, 1);
  world.ask(1, 1, {.name = ".."});
  EXPECT_EQ(world.header(0).ended_request.load(), 1u);
  world.expect_result(0, 1, Code::kInvalidArgument);
  EXPECT_STREQ(world.result(0, 1).text, world.result(1, 1).text);
  // The other way round, and a new attempt after it.
  world.ask(0, 1, {.name = ".."});
  world.ask(1, 1);
  world.expect_result(1, 2, Code::kInvalidArgument);
  EXPECT_EQ(world.ports.saving, nullptr);
  world.save_after(1);
  world.end_save();
}

TEST(JobSaves, ShapesThatAreAnothersAreAFailedSaveAndNoFolder) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1, {.shapes = {{1}}});
  world.write_it();
  world.expect_result(0, 1, Code::kBadInput);
  EXPECT_TRUE(std::filesystem::is_empty(world.folder.path()));
  world.train_to(2);
  EXPECT_TRUE(world.equals(world.reference));
}

TEST(JobSaves, StoppingBreaksOneOffLeavesNothingAndDropsOneThatWaits) {
  SavingJob world;
  world.save_after(1, kPlenty);
  world.save_after(2);
  world.job.stop();
  world.expect_result(0, 2, Code::kUnavailable);
  EXPECT_EQ(world.ports.overs, 0);
  world.write_it();
  EXPECT_EQ(world.ports.saving, nullptr) << "another one has begun";
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_EQ(world.job.saves().failed, 2u);
  EXPECT_TRUE(std::filesystem::is_empty(world.folder.path()));
}

TEST(JobSaves, MemoryOfCopiesIsGivenBackOnceTheSaveIsOver) {
  for (const bool in_hand : {false, true}) {
    SavingJob world;
    world.save_after(1, kPlenty);
    const std::weak_ptr<Snapshot> snapshot = world.ports.saving->snapshot;
    world.train_to(2);
    for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 3);
    if (in_hand) world.post_all(3);
    world.end_save();
    EXPECT_EQ(snapshot.expired(), !in_hand) << "workers may copy there still";
    world.run_workers();
    EXPECT_TRUE(snapshot.expired());
  }
}

TEST(JobSaves, ASaveOutlivesItsTrainers) {
  SavingJob world;
  world.save_after(1);
  world.job.lose_rank(world.rank(1));
  // The other one hears at once, not when the disk is done.
  expect_told(world.ports, 0, Code::kPeerLost, "rank 1");
  EXPECT_EQ(world.ports.overs, 0) << "its memory is being read";
  world.write_it();
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_EQ(world.ports.told.size(), 1u);
  const auto listed = must(checkpoints::list_checkpoints(world.folder.path()));
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_TRUE(listed[0].valid) << listed[0].why;
}

TEST(JobSaves, OneThatIsAskedForWhenTheTrainersSayGoodbyeIsMade) {
  SavingJob world;
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  world.post_all(1);
  world.ask_all(1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.job.detach(world.rank(rank));
  world.run_workers();
  ASSERT_NE(world.ports.saving, nullptr);
  EXPECT_EQ(world.ports.overs, 0);
  world.write_it();
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(JobSaves, WhatAWriterEndsAfterTheSaveWasBrokenOffDoesNotCount) {
  SavingJob world;
  Snapshot& snapshot = world.save_after(1);
  for (uint32_t left = 3; left > 0; --left) {
    const std::optional<Snapshot::Item> item = snapshot.next();
    ASSERT_TRUE(item.has_value());
    if (left == 1) snapshot.end();  // an update may change it from here on
    snapshot.written(item->chunk);
  }
  EXPECT_FALSE(snapshot.all_written());
  world.end_save(kBrokenOff);
}

// A writer that hangs wakes nobody.
TEST(JobSaves, StoppingFinishesAStepThatTheSaveHeldUpThoughItsWritersDoNotComeBack) {
  SavingJob world;
  world.save_after(1, 0);
  world.make_step(2);
  EXPECT_EQ(world.finished_step(), 1u);
  EXPECT_FALSE(world.job.waits_for_folder_alone());
  world.job.stop();
  EXPECT_FALSE(world.job.waits_for_folder_alone()) << "workers have the step";
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 2u);
  EXPECT_TRUE(world.job.waits_for_folder_alone());
  EXPECT_EQ(world.job.folder_under_way(), "step-000000001");
  EXPECT_EQ(world.ports.overs, 0);
  world.write_it();
  EXPECT_EQ(world.ports.overs, 1);
}

// ---- chunks placed on the GPU ----

FakeModel model_with_gpu_chunks() {
  FakeModel model = make_model(ComputeType::kFp32, 2, 3, 1024);
  model.shape.n_gpu_chunks = 2;
  return model;
}

struct StagingJob : SavingJob {
  StagingJob() : SavingJob({.model = model_with_gpu_chunks()}) {}

  Status stage(uint32_t rank, uint32_t number, uint32_t chunk) {
    shm::StagedChunk message{};
    message.number = number;
    message.chunk = model.shape.n_chunks + chunk;
    return job.staged_chunk(this->rank(rank), message);
  }
};

TEST(JobSaves, AChunkThatIsStagedBeforeTheSaveBeginsCounts) {
  StagingJob world;
  world.save_after(1, kPlenty);
  world.save_after(2, kPlenty);  // waits
  EXPECT_EQ(world.stage(0, 2, 1).code(), Code::kProtocol) << "not the first one";
  EXPECT_TRUE(world.stage(0, 2, 0).ok());
  EXPECT_EQ(world.stage(0, 2, 0).code(), Code::kProtocol) << "twice";
  EXPECT_TRUE(world.stage(1, 2, 0).ok());
  world.end_save();
  ASSERT_NE(world.ports.saving, nullptr);
  ASSERT_EQ(world.ports.saving->name, "step-000000002");
  const std::optional<Snapshot::Item> item = world.ports.saving->snapshot->next();
  ASSERT_TRUE(item.has_value());
  EXPECT_EQ(item->chunk, world.model.shape.n_chunks) << "what trainers wait for comes first";
  world.ports.saving->snapshot->written(item->chunk);
  world.job.saving_moved();
  EXPECT_EQ(world.header(1).staged_taken.load(), 1u);
  EXPECT_TRUE(world.stage(0, 2, 1).ok());
  EXPECT_TRUE(world.stage(0, 1, 0).ok()) << "of a save that is over";
  world.end_save(kBrokenOff);
}

// Who brings such chunks waits for that; a tick may be 100 ms away.
TEST(JobSaves, ThatItHasBegunIsSaidAtOnce) {
  SavingJob world;
  world.save_after(1);
  const UniqueFd woken(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Saving& saving = *world.ports.saving;
  saving.wake_fd = woken.get();
  saving.snapshot->end();
  EXPECT_EQ(world.result(1, 1).bytes.load(), 0u);
  write_save(saving);
  uint64_t count = 0;
  EXPECT_EQ(::read(woken.get(), &count, sizeof count), ssize_t{sizeof count});
  world.job.saving_moved();
  EXPECT_EQ(world.result(1, 1).bytes.load(), saving.bytes.load());
  EXPECT_GT(saving.bytes.load(), 0u);
  world.end_save(kBrokenOff);
}

TEST(JobSaves, OneThatStandsStillIsInTheLog) {
  SavingJob world;
  world.save_after(1);
  const auto said = [&world](int64_t s) {
    ::testing::internal::CaptureStderr();
    world.job.say_what_stands_still(s * 1'000'000'000);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(100), "");
  EXPECT_EQ(said(129), "");
  world.ports.saving->done_bytes.store(7);
  EXPECT_EQ(said(131), "") << "it has moved";
  EXPECT_EQ(said(160), "");
  const std::string line = said(162);
  EXPECT_NE(line.find("event=save_stands_still"), std::string::npos) << line;
  EXPECT_NE(line.find("folder=step-000000001 bytes=7"), std::string::npos) << line;
  EXPECT_NE(line.find("seconds=31"), std::string::npos) << line;
  EXPECT_EQ(said(163), "") << "once a minute";
  EXPECT_NE(said(223), "");
  world.end_save();
  EXPECT_EQ(said(400), "");
}

TEST(JobSaves, WhatTheyTakeIsSaidFromTheRequestToTheEnd) {
  StagingJob world;
  EXPECT_EQ(world.job.save_memory().bytes, 0u);
  const uint64_t images = chunk_bytes(world.model), shadow = 3 * images;
  world.save_after(1, kPlenty);
  EXPECT_EQ(world.job.save_memory().bytes, shadow + images);
  EXPECT_EQ(world.job.save_memory().there_bytes, images) << "no copy is made yet";
  world.make_step(2);
  EXPECT_EQ(world.job.save_memory().there_bytes, shadow + images);
  world.ask(0, 2, {.name = "step-000000002"});
  EXPECT_EQ(world.job.save_memory().bytes, shadow + images);
  world.end_save(kBrokenOff);
  EXPECT_EQ(world.job.save_memory().bytes, 0u);

  Snapshot snapshot(world.model.shape, StateSlots(world.model.shape),
                    {{world.rank(0).memory.get(), 0}}, 2 * images);
  EXPECT_EQ(snapshot.shadow_there_bytes(), 0u);
  snapshot.take_shadow_memory();
  EXPECT_EQ(snapshot.shadow_there_bytes(), snapshot.shadow_bytes());
}

// ---- from a folder ----

// A job that takes its states from what another one saved.
struct Restored : InProcessJob {
  // `details_of`: what the trainer says of its parameters, if not its own.
  Restored(const FakeModel& model, const std::string& path, const FakeModel* details_of = nullptr)
      : InProcessJob({.model = model}) {
    attach();
    shm::LoadFolder message{};
    message.number = ++rank(0).requests_come;
    message.states = 1;
    shm::set_text(message.path, path);
    checkpoints::Details details;
    details.shapes = shapes_of((details_of == nullptr ? model : *details_of).places);
    job.heard_load(rank(0), message, std::move(details), open_folder(path));
    const std::shared_ptr<Restoring> restoring = std::exchange(ports.restoring, nullptr);
    if (restoring == nullptr) return;
    read_restore(*restoring);
    status = restoring->status;
    job.restore_over();
  }
  const shm::FolderResult& result() { return rank(0).memory->folder_result(1); }

  void expect_equal(const Reference& reference) const {
    ASSERT_TRUE(status.ok()) << status.message();
    must(trainers.compare(reference));
  }

  Status status = error(Code::kInternal, "nothing was read");
};

// By type and chunk length. Some parameters are longer than a chunk: whatever the length, they are
// one tensor each.
class SavedStates : public ::testing::TestWithParam<std::tuple<ComputeType, uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(TypesAndLengths, SavedStates,
                         ::testing::Combine(::testing::Values(ComputeType::kFp32,
                                                              ComputeType::kBf16,
                                                              ComputeType::kFp16),
                                            ::testing::ValuesIn(kChunkLengths)));

TEST_P(SavedStates, AreRestoredToTheBitByAnyRanksAndChunkLengthsAndTheRunGoesOn) {
  const auto& [type, chunk_numel] = GetParam();
  const auto model_of = [type = type](uint32_t ranks, uint64_t numel) {
    return make_uneven_model(type, ranks, numel);
  };
  SavingJob world({.model = model_of(2, chunk_numel)});
  world.save_after(3);
  world.write_it();
  for (const uint64_t to : kChunkLengths) {
    Reference saved(model_of(2, to));
    for (uint32_t step = 1; step <= 3; ++step) saved.step(make_record(step, 2));
    Reference later = saved;
    for (uint32_t step = 4; step <= 5; ++step) later.step(make_record(step, 2));
    for (const uint32_t ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{}, from {} to {} elements a chunk and {} ranks",
                               compute_type_name(type), chunk_numel, to, ranks));
      FakeModel model = model_of(ranks, to);
      model.unused = {};
      Restored other(model, world.folder.path("step-000000003"));
      EXPECT_EQ(other.job.phase(), JobPhase::kTraining);
      EXPECT_EQ(other.header(0).ended_request.load(), 1u);
      EXPECT_EQ(other.result().step, 3u);
      other.expect_equal(saved);
      EXPECT_FALSE(other.equals(later)) << "the control: two steps change nothing";
      if (ranks != 2) continue;
      for (uint32_t step = 1; step <= 2; ++step) {
        ASSERT_TRUE(step_as(other.trainers, step, step + 3).ok());
      }
      other.expect_equal(later);
    }
  }
}

TEST(JobSaves, BringParametersLongerThanAChunkIntoFrozenChunks) {
  const FakeModel model = make_long_model(ComputeType::kBf16, 2, 128 * 37);
  SavingJob world({.model = model});
  world.save_after(1);
  world.write_it();
  // The first parameter's three chunks become the last three.
  FakeModel other = model;
  std::rotate(other.places.begin(), other.places.begin() + 1, other.places.end());
  other.shape.n_chunks -= 3;
  other.shape.n_frozen_chunks = 3;
  --other.shape.n_parameters;
  for (shm::ParameterPlace& place : other.places) place.chunk -= 3;
  other.places.back().chunk = other.shape.n_chunks;
  Restored restored(other, world.folder.path("step-000000001"));
  ASSERT_TRUE(restored.status.ok()) << restored.status.message();
  for (uint32_t chunk = 0; chunk < other.shape.total_chunks(); ++chunk) {
    const uint32_t before = (chunk + 3) % other.shape.total_chunks();
    std::vector<std::byte> have = restored.trainers.rank(0).gather(chunk);
    std::vector<std::byte> want = world.reference.param(before);
    const uint64_t bytes = model.used_numel(before) * element_bytes(ComputeType::kBf16);
    have.resize(bytes), want.resize(bytes);
    EXPECT_EQ(have, want) << "chunk " << chunk;
  }
}

// Of gradients that were dropped again between two steps.
TEST(JobSaves, CountNoEarlyUpdateOfTheStepAfter) {
  FakeModel model = make_model(ComputeType::kBf16, 2, 6, 1024);
  model.shape.n_spare_slots = 6;
  SavingJob world({.model = model, .early = 1});
  world.train_to(3);
  const auto last_end = [&] { return world.rank(0).memory->chunk_record(5).update_end_ns.load(); };
  const uint64_t before = last_end();
  for (uint32_t rank = 0; rank < 2; ++rank) world.open(rank, 4);
  world.publish_all(4);
  world.run_workers();
  EXPECT_NE(last_end(), before) << "no early update: no test";
  for (uint32_t rank = 0; rank < 2; ++rank) world.discard(rank);
  world.save_after(3);
  world.write_it();
  model.shape.n_spare_slots = 0;
  Restored again(model, world.folder.path("step-000000003"));
  again.expect_equal(world.reference);
  ASSERT_TRUE(step_as(again.trainers, 1, 4).ok());
  world.train_to(4);
  EXPECT_TRUE(world.equals(world.reference));
  again.expect_equal(world.reference);
}

// A folder of the trainer's own has the tensor with the shape that it asks for.
TEST(JobSaves, ShapesOfALoadThatAreNotTheTablesAreRefusedAndNothingIsRead) {
  SavingJob world;
  world.save_after(1);
  world.write_it();
  FakeModel smaller = world.model;
  for (shm::ParameterPlace& place : smaller.places) place.numel = 128;
  Restored other(smaller, world.folder.path("step-000000001"), /*details_of=*/&world.model);
  EXPECT_EQ(other.status.message(), "nothing was read");
  expect_refused(Status(static_cast<Code>(other.result().code), other.result().text),
                 Code::kProtocol, {"elements"});
}

// ---- a lack of memory ----

TEST(JobSaves, ASaveThatCannotBeginForLackOfMemoryEndsAndTrainingGoesOn) {
  SavingJob world;
  world.train_to(1);
  world.ports.lacks_memory = true;
  world.ask_all(1);
  world.ports.lacks_memory = false;
  for (uint32_t rank = 0; rank < world.model.shape.ranks; ++rank) {
    const shm::FolderResult& result = world.trainers.rank(rank).folder_result(1);
    EXPECT_EQ(static_cast<Code>(result.code), Code::kResourceExhausted);
    EXPECT_NE(shm::get_text(result.text).find("ulimit -d"), std::string::npos);
    EXPECT_EQ(world.header(rank).ended_request.load(), 1u);
  }
  EXPECT_EQ(world.job.saves().failed, 1u);
  world.train_to(3);
  EXPECT_TRUE(world.equals(world.reference));
  world.ask_all(3, {.name = checkpoints::step_name(3)});
  EXPECT_NE(world.ports.saving, nullptr) << "the next one begins";
}

}  // namespace
}  // namespace elixir::daemon
