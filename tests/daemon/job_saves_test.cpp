// One job in process (job_test.cpp): its states go to a folder, and come from one.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "checkpoint/listing.h"
#include "checkpoint/stored_folder.h"
#include "daemon/job.h"
#include "tests/daemon/job_fixture.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::daemon {
namespace {

using testing::expect_told;
using testing::FakeModel;
using testing::InProcessJob;
using testing::make_model;
using testing::make_record;
using testing::Reference;

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// A job that trains, and a folder to save into.
struct SavingJob : InProcessJob {
  explicit SavingJob(Options options = {}) : InProcessJob(std::move(options)), reference(model) {
    start();
  }

  // All ranks' step, as far as nothing holds it.
  void post_all(uint32_t step) {
    for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) write_grads(rank, step);
    for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) post(rank, step);
    run_workers();
  }
  void train_to(uint32_t last) {
    for (uint32_t step = header(0).finished_step.load() + 1; step <= last; ++step) {
      post_all(step);
      reference.step(make_record(step, model.shape.ranks));
    }
  }

  SavePart part(uint32_t rank, uint32_t number, std::optional<uint64_t> shadow_bytes) {
    SavePart part;
    part.number = number;
    part.parent = open_folder(folder.path());
    part.details.shadow_bytes = shadow_bytes;
    part.details.manifest.step = header(rank).posted_step.load();
    for (const shm::ParameterPlace& place : model.places) {
      part.details.shapes.push_back({static_cast<int64_t>(place.numel)});
    }
    const std::string own = fmt::format("of rank {}", rank);
    part.details.files.push_back({fmt::format("user/rank-{}.bin", rank), {}});
    for (const char c : own) part.details.files.back().bytes.push_back(std::byte(c));
    return part;
  }
  // The rank's request has been read.
  void ask(uint32_t rank, uint32_t after_step, std::optional<uint64_t> shadow_bytes = {},
           const std::string& name = "step-000000001", bool drop_if_busy = false) {
    shm::SaveFolder message{};
    message.number = ++this->rank(rank).requests_come;
    message.after_step = after_step;
    message.drop_if_busy = drop_if_busy ? 1 : 0;
    shm::set_text(message.name, name);
    job.heard_save(this->rank(rank), message, part(rank, message.number, shadow_bytes));
  }
  void ask_all(uint32_t after_step, std::optional<uint64_t> shadow_bytes = {},
               const std::string& name = "step-000000001") {
    for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) {
      ask(rank, after_step, shadow_bytes, name);
    }
  }
  // Its writers are done.
  void end_save(Status status = Status()) {
    const std::shared_ptr<Saving> saving = std::exchange(ports.saving, nullptr);
    ASSERT_NE(saving, nullptr);
    saving->status = std::move(status);
    saving->end_ns = saving->begin_ns;
    saving->snapshot->end();
    job.save_over();
  }
  // As background threads would.
  void write_it() {
    const std::shared_ptr<Saving> saving = std::exchange(ports.saving, nullptr);
    ASSERT_NE(saving, nullptr);
    write_save(*saving);
    job.save_over();
  }
  const shm::FolderResult& result(uint32_t rank, uint32_t number) {
    return this->rank(rank).memory->folder_result(number);
  }

  // Every array of a rank's shard of a chunk.
  std::vector<std::byte> arrays(const Snapshot::Arrays& of) const {
    const shm::Shape& shape = model.shape;
    std::vector<std::byte> bytes(of.param, of.param + shape.shard_bytes());
    for (const std::byte* moment : of.moments) {
      bytes.insert(bytes.end(), moment, moment + shape.shard_numel() * sizeof(float));
    }
    return bytes;
  }
  std::vector<std::byte> live(uint32_t chunk, uint32_t rank) {
    const SessionMemory& memory = *this->rank(rank).memory;
    Snapshot::Arrays of;
    of.param = memory.param(chunk, 0);
    for (uint32_t i = 0; i < 2; ++i) {
      of.moments[i] = reinterpret_cast<const std::byte*>(memory.moment(i, chunk, 0));
    }
    return arrays(of);
  }

  const TemporaryFolder folder;
  Reference reference;
};

uint64_t chunk_bytes(const FakeModel& model) {
  return model.shape.image_bytes() * model.shape.ranks;
}

// With any budget: none, one chunk's, all.
class WhatIsWritten : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Budgets, WhatIsWritten, ::testing::Values(0, 1, 100));

TEST_P(WhatIsWritten, IsTheStepThatItIsOfThoughTheNextOneIsMade) {
  SavingJob world;
  const uint32_t n_chunks = world.model.shape.n_chunks;
  world.train_to(1);
  std::vector<std::vector<std::byte>> expected;
  for (uint32_t chunk = 0; chunk < n_chunks; ++chunk) {
    for (uint32_t rank = 0; rank < 2; ++rank) expected.push_back(world.live(chunk, rank));
  }
  world.ask_all(1, static_cast<uint64_t>(GetParam()) * chunk_bytes(world.model));
  ASSERT_NE(world.ports.saving, nullptr);
  Snapshot& snapshot = *world.ports.saving->snapshot;
  world.post_all(2);
  // What has no copy is held, and with it the step.
  const bool all_copied = GetParam() >= static_cast<int>(n_chunks);
  EXPECT_EQ(world.header(0).finished_step.load(), all_copied ? 2u : 1u);
  EXPECT_EQ(world.header(0).committed_step.load(), 2u);
  uint32_t changed = 0;
  while (const std::optional<Snapshot::Item> item = snapshot.next()) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const std::vector<std::byte>& then = expected[item->chunk * 2 + rank];
      EXPECT_EQ(world.arrays(item->ranks[rank]), then) << "chunk " << item->chunk;
      changed += world.live(item->chunk, rank) != then ? 1 : 0;
    }
    snapshot.written(item->chunk);
    world.job.saving_moved();
    world.run_workers();
  }
  // The control: without a copy these would not have been what they were.
  EXPECT_EQ(changed > 0, GetParam() > 0);
  EXPECT_TRUE(snapshot.all_written());
  EXPECT_EQ(world.header(0).finished_step.load(), 2u);
  world.end_save();
  world.reference.step(make_record(2, 2));
  EXPECT_TRUE(world.equals(world.reference));
  world.train_to(4);
  EXPECT_TRUE(world.equals(world.reference));
  EXPECT_LE(world.result(0, 1).shadow_peak_bytes,
            static_cast<uint64_t>(GetParam()) * chunk_bytes(world.model));
  EXPECT_EQ(world.result(0, 1).stall_ns > 0, !all_copied);
}

TEST(JobSaves, ChunksThatAWriterHasInHandAreNotUpdated) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1, 0);
  Snapshot& snapshot = *world.ports.saving->snapshot;
  const std::optional<Snapshot::Item> first = snapshot.next();
  ASSERT_TRUE(first.has_value());
  const std::vector<std::byte> then = world.live(first->chunk, 0);
  world.post_all(2);
  EXPECT_EQ(world.live(first->chunk, 0), then);
  EXPECT_EQ(world.ports.submitted, nullptr);
  EXPECT_TRUE(snapshot.written(first->chunk)) << "nobody would wake the event loop";
  world.job.saving_moved();
  world.run_workers();
  EXPECT_NE(world.live(first->chunk, 0), then);
  world.end_save(error(Code::kResourceExhausted, "disk full"));
  // Whatever became of it, training goes on.
  world.run_workers();
  EXPECT_EQ(world.header(0).finished_step.load(), 2u);
  EXPECT_EQ(world.job.saves().failed, 1u);
  EXPECT_EQ(world.job.saves().error_last, "disk full");
  EXPECT_TRUE(world.ports.told.empty());
}

TEST(JobSaves, AWriterPutsAChunkBackWhoseUpdateWaitsWhileThereIsRoomForACopy) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1, chunk_bytes(world.model) * 100);
  Snapshot& snapshot = *world.ports.saving->snapshot;
  const std::optional<Snapshot::Item> first = snapshot.next();
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(snapshot.put_back_if_wanted(first->chunk)) << "nobody waits";
  const std::vector<std::byte> then = world.live(first->chunk, 0);
  world.post_all(2);
  EXPECT_EQ(world.header(0).finished_step.load(), 1u) << "all but that one are updated";
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
  EXPECT_EQ(world.header(0).finished_step.load(), 2u);
  uint32_t seen = 0;
  while (const std::optional<Snapshot::Item> item = snapshot.next()) {
    seen += item->chunk == first->chunk ? 1 : 0;
    if (item->chunk == first->chunk) {
      EXPECT_EQ(world.arrays(item->ranks[0]), then);
    }
    snapshot.written(item->chunk);
  }
  EXPECT_EQ(seen, 1u);
  EXPECT_TRUE(snapshot.all_written());
  world.end_save();
}

TEST(JobSaves, ImmediateUpdatesAreHeldAndCopiedAsWell) {
  for (const uint64_t copies : {0, 1, 100}) {
    SavingJob world({.immediate = true});
    const auto step = [&](uint32_t number) {
      for (uint32_t rank = 0; rank < 2; ++rank) {
        world.open(rank, number);
        ASSERT_TRUE(world.publish(rank, number).ok());
        world.run_workers();
      }
      for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, number);
      world.run_workers();
      world.reference.step(make_record(number, 2));
    };
    step(1);
    std::vector<std::vector<std::byte>> expected;
    for (uint32_t chunk = 0; chunk < 3; ++chunk) expected.push_back(world.live(chunk, 0));
    world.ask_all(1, copies * chunk_bytes(world.model));
    Snapshot& snapshot = *world.ports.saving->snapshot;
    step(2);
    while (const std::optional<Snapshot::Item> item = snapshot.next()) {
      EXPECT_EQ(world.arrays(item->ranks[0]), expected[item->chunk]) << copies;
      snapshot.written(item->chunk);
      world.job.saving_moved();
      world.run_workers();
    }
    EXPECT_EQ(world.header(0).finished_step.load(), 2u) << copies;
    EXPECT_TRUE(world.equals(world.reference)) << copies;
    world.end_save();
  }
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
  EXPECT_EQ(world.result(1, 1).code, 0u) << world.result(1, 1).text;
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
  EXPECT_EQ(world.result(0, 1).code, static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_NE(std::string(world.result(0, 1).text).find("rank 1 called step() and not save()"),
            std::string::npos)
      << world.result(0, 1).text;
  world.post(0, 2);
  world.run_workers();
  EXPECT_EQ(world.header(0).finished_step.load(), 2u);
}

TEST(JobSaves, ASecondSaveWaitsForTheFirstOneAndHoldsTheNextStep) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1, uint64_t{1} << 30);
  const std::shared_ptr<Saving> first = world.ports.saving;
  world.train_to(2);
  world.ask_all(2, {}, "step-000000002");
  EXPECT_EQ(world.ports.saving, first);
  world.post_all(3);
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
  world.train_to(1);
  world.ask_all(1);
  world.ask(0, 1, {}, "other", /*drop_if_busy=*/true);
  EXPECT_EQ(world.result(0, 2).code, static_cast<uint32_t>(Code::kUnavailable));
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
    world.ask(0, 1, {}, name);
    EXPECT_EQ(world.result(0, world.rank(0).requests_come).code,
              static_cast<uint32_t>(Code::kInvalidArgument))
        << name;
  }
  world.ask(0, 2);
  EXPECT_EQ(world.result(0, world.rank(0).requests_come).code,
            static_cast<uint32_t>(Code::kProtocol));
  EXPECT_EQ(world.header(0).ended_request.load(), 7u);
  world.train_to(2);
}

// Else some would wait in a save for others that go on.
TEST(JobSaves, WhatOneRankIsRefusedAllAre) {
  SavingJob world;
  world.train_to(1);
  world.ask(0, 1);
  world.ask(1, 1, {}, "..");
  EXPECT_EQ(world.header(0).ended_request.load(), 1u);
  EXPECT_EQ(world.result(0, 1).code, static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_STREQ(world.result(0, 1).text, world.result(1, 1).text);
  // The other way round, and a new attempt after it.
  world.ask(0, 1, {}, "..");
  world.ask(1, 1);
  EXPECT_EQ(world.result(1, 2).code, static_cast<uint32_t>(Code::kInvalidArgument));
  EXPECT_EQ(world.ports.saving, nullptr);
  world.ask_all(1);
  ASSERT_NE(world.ports.saving, nullptr) << world.result(0, 3).text;
  world.end_save();
}

TEST(JobSaves, StoppingDropsOneThatWaits) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1, uint64_t{1} << 30);
  world.train_to(2);
  world.ask_all(2, {}, "step-000000002");
  world.job.stop();
  EXPECT_EQ(world.result(0, 2).code, static_cast<uint32_t>(Code::kUnavailable));
  world.write_it();
  EXPECT_EQ(world.ports.saving, nullptr) << "another one has begun";
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(JobSaves, MemoryOfCopiesIsGivenBackOnceTheSaveIsOver) {
  for (const bool in_hand : {false, true}) {
    SavingJob world;
    world.train_to(1);
    world.ask_all(1, uint64_t{1} << 30);
    const std::weak_ptr<Snapshot> snapshot = world.ports.saving->snapshot;
    world.train_to(2);
    for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 3);
    for (uint32_t rank = 0; in_hand && rank < 2; ++rank) world.post(rank, 3);
    world.end_save();
    EXPECT_EQ(snapshot.expired(), !in_hand) << "workers may copy there still";
    world.run_workers();
    EXPECT_TRUE(snapshot.expired());
  }
}

TEST(JobSaves, ASaveOutlivesItsTrainers) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1);
  world.job.lose_rank(world.rank(1));
  // The other one hears at once, not when the disk is done.
  expect_told(world.ports, 0, Code::kPeerLost, "rank 1");
  EXPECT_EQ(world.ports.overs, 0) << "its memory is being read";
  world.write_it();
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_EQ(world.ports.told.size(), 1u);
  const auto listed = checkpoints::list_checkpoints(world.folder.path());
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_TRUE((*listed)[0].valid) << (*listed)[0].why;
}

TEST(JobSaves, OneThatIsAskedForWhenTheTrainersSayGoodbyeIsMade) {
  SavingJob world;
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, 1);
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
  world.train_to(1);
  world.ask_all(1);
  Snapshot& snapshot = *world.ports.saving->snapshot;
  for (uint32_t left = 3; left > 0; --left) {
    const std::optional<Snapshot::Item> item = snapshot.next();
    ASSERT_TRUE(item.has_value());
    if (left == 1) snapshot.end();  // an update may change it from here on
    snapshot.written(item->chunk);
  }
  EXPECT_FALSE(snapshot.all_written());
  world.end_save(error(Code::kUnavailable, "broken off"));
}

// A writer that hangs wakes nobody.
TEST(JobSaves, StoppingFinishesAStepThatTheSaveHeldUpThoughItsWritersDoNotComeBack) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1, 0);
  world.post_all(2);
  EXPECT_EQ(world.header(0).finished_step.load(), 1u);
  EXPECT_FALSE(world.job.waits_for_folder_alone());
  world.job.stop();
  EXPECT_FALSE(world.job.waits_for_folder_alone()) << "workers have the step";
  world.run_workers();
  EXPECT_EQ(world.header(0).finished_step.load(), 2u);
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

// What is staged is all that differs.
struct StagingJob : SavingJob {
  StagingJob() : SavingJob({.model = model_with_gpu_chunks()}) {}

  void ask_all(uint32_t after_step, const std::string& name) {
    for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) {
      shm::SaveFolder message{};
      message.number = ++this->rank(rank).requests_come;
      message.after_step = after_step;
      shm::set_text(message.name, name);
      SavePart own = part(rank, message.number, uint64_t{1} << 30);
      auto staging = shm::Segment::create("elixir-test-staging", model.shape.staging_bytes());
      ASSERT_TRUE(staging.ok());
      own.staging.reset(::dup(staging->fd()));
      job.heard_save(this->rank(rank), message, std::move(own));
    }
  }
  Status stage(uint32_t rank, uint32_t number, uint32_t chunk) {
    shm::StagedChunk message{};
    message.number = number;
    message.chunk = model.shape.n_chunks + chunk;
    return job.staged_chunk(this->rank(rank), message);
  }
};

TEST(JobSaves, AChunkThatIsStagedBeforeTheSaveBeginsCounts) {
  StagingJob world;
  world.train_to(1);
  world.ask_all(1, "step-000000001");
  world.train_to(2);
  world.ask_all(2, "step-000000002");  // waits
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
  world.end_save(error(Code::kUnavailable, "broken off"));
}

// Who brings such chunks waits for that; a tick may be 100 ms away.
TEST(JobSaves, ThatItHasBegunIsSaidAtOnce) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1);
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
  world.end_save(error(Code::kUnavailable, "broken off"));
}

TEST(JobSaves, OneThatStandsStillIsInTheLog) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1);
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

// ---- memory ----

TEST(JobSaves, WhatTheyTakeIsSaidFromTheRequestToTheEnd) {
  StagingJob world;
  world.train_to(1);
  EXPECT_EQ(world.job.save_memory().bytes, 0u);
  const uint64_t images = chunk_bytes(world.model), shadow = 3 * images;
  world.ask_all(1, "step-000000001");
  EXPECT_EQ(world.job.save_memory().bytes, shadow + images);
  EXPECT_EQ(world.job.save_memory().there_bytes, images) << "no copy is made yet";
  world.post_all(2);
  EXPECT_EQ(world.job.save_memory().there_bytes, shadow + images);
  world.ask(0, 2, {}, "step-000000002");
  EXPECT_EQ(world.job.save_memory().bytes, shadow + images);
  world.end_save(error(Code::kUnavailable, "broken off"));
  EXPECT_EQ(world.job.save_memory().bytes, 0u);

  Snapshot snapshot(world.model.shape, daemon::StateSlots(world.model.shape),
                    {{world.rank(0).memory.get(), 0}}, 2 * images);
  EXPECT_EQ(snapshot.shadow_there_bytes(), 0u);
  snapshot.take_shadow_memory();
  EXPECT_EQ(snapshot.shadow_there_bytes(), snapshot.shadow_bytes());
}

TEST(JobSaves, StoppingBreaksItOffAndLeavesNothing) {
  SavingJob world;
  world.train_to(1);
  world.ask_all(1);
  world.job.stop();
  EXPECT_EQ(world.ports.overs, 0);
  world.write_it();
  EXPECT_EQ(world.ports.overs, 1);
  EXPECT_EQ(world.job.saves().failed, 1u);
  EXPECT_TRUE(std::filesystem::is_empty(world.folder.path()));
}

// ---- from a folder ----

// A job that takes its states from what another one saved.
struct Restored : InProcessJob {
  Restored(Options options, const std::string& path, bool states = true)
      : InProcessJob(std::move(options)) {
    attach();
    restore(path, states);
  }
  void restore(const std::string& path, bool states = true) {
    shm::LoadFolder message{};
    message.number = ++rank(0).requests_come;
    message.states = states ? 1 : 0;
    shm::set_text(message.path, path);
    checkpoints::Details details;
    for (const shm::ParameterPlace& place : model.places) {
      details.shapes.push_back({static_cast<int64_t>(place.numel)});
    }
    job.heard_load(rank(0), message, std::move(details), open_folder(path));
    const std::shared_ptr<Restoring> restoring = std::exchange(ports.restoring, nullptr);
    if (restoring == nullptr) return;
    read_restore(*restoring);
    status = restoring->status;
    job.restore_over();
  }
  uint64_t result_step() { return rank(0).memory->folder_result(1).step; }
  // The gradients that another run had in its step `of_step`.
  void write_grads_of(uint32_t rank, uint32_t step, uint32_t of_step) {
    write_grads(rank, step);
    for (uint32_t chunk = 0; chunk < model.shape.n_chunks; ++chunk) {
      const std::vector<std::byte> grads = testing::fake_gradient(model, rank, chunk, of_step);
      std::memcpy(this->rank(rank).memory->grads().data() + model.shape.grad_slot_offset(chunk),
                  grads.data(), grads.size());
    }
  }

  Status status = error(Code::kInternal, "nothing was read");
};

// The same parameters in other chunks.
FakeModel other_chunks(const FakeModel& model, uint32_t ranks) {
  FakeModel other;
  other.shape = model.shape;
  other.shape.ranks = ranks;
  other.shape.n_chunks = model.shape.n_chunks * 2;
  for (const shm::ParameterPlace& place : model.places) {
    const uint32_t chunk = place.chunk * 2 + (place.offset > 0 ? 1 : 0);
    other.places.push_back({place.name, other.shape.n_chunks - 1 - chunk, 0, place.numel});
  }
  return other;
}

// By parameter, the bits of all three arrays.
std::vector<std::vector<float>> values_of(InProcessJob& world, const FakeModel& named_by) {
  std::vector<std::vector<float>> all;
  for (const shm::ParameterPlace& named : named_by.places) {
    for (const shm::ParameterPlace& place : world.model.places) {
      if (place.name != named.name) continue;
      std::vector<float> values;
      for (uint32_t array = 0; array < 3; ++array) {
        for (uint64_t i = place.offset; i < place.offset + place.numel; ++i) {
          const uint64_t shard = world.model.shape.shard_numel();
          const SessionMemory& memory = *world.rank(static_cast<uint32_t>(i / shard)).memory;
          const float* const at =
              array == 0 ? reinterpret_cast<const float*>(memory.param(place.chunk, i % shard))
                         : memory.moment(array - 1, place.chunk, i % shard);
          values.push_back(*at);
        }
      }
      all.push_back(std::move(values));
    }
  }
  return all;
}

TEST(JobSaves, WhatIsSavedIsRestoredWithAnyRanksAndChunksToTheBitAndGoesOn) {
  SavingJob world;
  world.train_to(3);
  world.ask_all(3, {}, "step-000000003");
  world.write_it();
  const std::string path = world.folder.path("step-000000003");
  const std::vector<std::vector<float>> saved = values_of(world, world.model);
  for (const uint32_t ranks : {1, 2, 3, 4}) {
    Restored other({.model = other_chunks(world.model, ranks)}, path);
    ASSERT_TRUE(other.status.ok()) << other.status.message();
    EXPECT_EQ(other.job.phase(), JobPhase::kTraining);
    EXPECT_EQ(other.header(0).ended_request.load(), 1u);
    EXPECT_EQ(other.result_step(), 3u);
    EXPECT_EQ(values_of(other, world.model), saved) << ranks;
  }
  // The same job goes on with its bits: Adam's counts came along.
  Restored again({}, path);
  EXPECT_EQ(values_of(again, world.model), saved);
  world.train_to(5);
  for (uint32_t step = 1; step <= 2; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      again.write_grads_of(rank, step, /*of_step=*/step + 3);
      shm::StepRecord record = make_record(step + 3, 2);
      record.step = step;
      again.post(rank, record);
    }
    again.run_workers();
  }
  EXPECT_EQ(values_of(again, world.model), values_of(world, world.model));
}

}  // namespace
}  // namespace elixir::daemon
