#include "daemon/job_machine.h"

#include <gtest/gtest.h>

namespace elixir::daemon {
namespace {

JobMachine attached_job(ComputeType type, uint32_t ranks, JobMachine::Chunks chunks,
                        uint32_t loaders = 1) {
  JobMachine job(type, ranks, chunks, loaders);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    EXPECT_TRUE(job.claim(rank, rank).ok());
    EXPECT_EQ(job.attached(rank), rank + 1 == ranks);
  }
  return job;
}

// A whole chunk, through the slot of its number.
Status ask_to_load(JobMachine& job, uint32_t chunk, uint32_t rank = 0) {
  return job.request_load({rank, chunk, chunk, shm::LoadPart::kWhole});
}

void finish_load(JobMachine& job) {
  EXPECT_EQ(job.start_next().activity, Activity::kLoad);
  job.finish_activity();
}

JobMachine training_job(uint32_t ranks) {
  JobMachine job = attached_job(ComputeType::kFp32, ranks, {1, 0});
  EXPECT_TRUE(ask_to_load(job, 0).ok());
  finish_load(job);
  EXPECT_EQ(job.phase(), JobPhase::kTraining);
  return job;
}

void finish_step(JobMachine& job, uint32_t step) {
  const NextActivity next = job.start_next();
  ASSERT_EQ(next.activity, Activity::kStep);
  ASSERT_EQ(next.step, step);
  job.finish_activity();
}

TEST(JobMachine, RanksAreTakenOnce) {
  JobMachine job(ComputeType::kFp32, 2, {1, 0}, 1);
  EXPECT_EQ(job.claim(2, 2).code(), Code::kInvalidArgument);
  EXPECT_TRUE(job.claim(1, 1).ok());
  EXPECT_EQ(job.claim(1, 1).code(), Code::kInvalidArgument);
  EXPECT_FALSE(job.attached(1));
  EXPECT_EQ(job.missing_ranks(), std::vector<uint32_t>{0});
  EXPECT_TRUE(job.claim(0, 0).ok());
  EXPECT_TRUE(job.attached(0));
  EXPECT_EQ(job.phase(), JobPhase::kLoading);
  EXPECT_EQ(job.claim(0, 0).code(), Code::kInvalidArgument);
}

TEST(JobMachine, LoadsInOrderAndOnceInASlot) {
  JobMachine job = attached_job(ComputeType::kBf16, 2, {2, 0});
  const auto load = [&](uint32_t rank, uint32_t chunk, shm::LoadPart part) {
    return job.request_load({rank, chunk, chunk, part}).code();
  };
  EXPECT_EQ(load(1, 0, shm::LoadPart::kHighHalf), Code::kProtocol);  // not rank 0
  EXPECT_EQ(load(0, 2, shm::LoadPart::kHighHalf), Code::kProtocol);  // no such chunk
  EXPECT_EQ(load(0, 0, shm::LoadPart::kWhole), Code::kProtocol);     // FP32's part
  EXPECT_EQ(load(0, 0, shm::LoadPart::kLowHalf), Code::kProtocol);   // high comes first
  EXPECT_EQ(load(0, 0, shm::LoadPart::kHighHalf), Code::kOk);
  EXPECT_EQ(load(0, 0, shm::LoadPart::kLowHalf), Code::kProtocol);  // the slot is in use
  EXPECT_EQ(load(0, 1, shm::LoadPart::kHighHalf), Code::kOk);       // another slot
  EXPECT_EQ(job.start_next().load.chunk, 0u);
  EXPECT_EQ(job.start_next().activity, Activity::kNone);  // one at a time
  job.finish_activity();
  EXPECT_EQ(load(0, 0, shm::LoadPart::kLowHalf), Code::kOk);
  for (int half = 0; half < 2; ++half) finish_load(job);
  EXPECT_EQ(job.phase(), JobPhase::kLoading) << "chunk 1 has only half";
  EXPECT_EQ(load(0, 1, shm::LoadPart::kLowHalf), Code::kOk);
  finish_load(job);
  EXPECT_EQ(job.phase(), JobPhase::kTraining);
}

TEST(JobMachine, WhatCompletesTheChunksStartsTraining) {
  JobMachine job = attached_job(ComputeType::kFp32, 1, {2, 0});
  EXPECT_EQ(job.note_posted(0, 1).code(), Code::kProtocol);  // not loaded
  EXPECT_TRUE(ask_to_load(job, 0).ok());
  EXPECT_FALSE(ask_to_load(job, 0).ok()) << "its slot is in use";
  for (int again = 0; again < 2; ++again) {
    finish_load(job);
    EXPECT_EQ(job.phase(), JobPhase::kLoading) << "chunk 1 is missing, however often chunk 0 came";
    EXPECT_TRUE(ask_to_load(job, 0).ok());
  }
  EXPECT_TRUE(ask_to_load(job, 1).ok());
  finish_load(job);
  EXPECT_EQ(job.phase(), JobPhase::kLoading);
  finish_load(job);
  EXPECT_EQ(job.phase(), JobPhase::kTraining);
  EXPECT_EQ(job.start_next().activity, Activity::kNone);
}

TEST(JobMachine, AStepNeedsEveryRankAndOneIsInFlight) {
  JobMachine job = training_job(2);
  EXPECT_TRUE(job.note_posted(0, 1).ok());
  EXPECT_EQ(job.start_next().activity, Activity::kNone);
  EXPECT_TRUE(job.note_posted(1, 2).ok());  // rank 1 is ahead
  EXPECT_EQ(job.start_next().step, 1u);
  EXPECT_EQ(job.committed_step(), 1u);
  EXPECT_EQ(job.finished_step(), 0u);
  EXPECT_TRUE(job.note_posted(0, 2).ok());
  EXPECT_EQ(job.start_next().activity, Activity::kNone);
  job.finish_activity();
  EXPECT_EQ(job.finished_step(), 1u);
  finish_step(job, 2);
}

TEST(JobMachine, PostedStepsAreForeignNumbers) {
  JobMachine job = training_job(2);
  EXPECT_EQ(job.note_posted(0, kMaxStepsAhead + 1).code(), Code::kProtocol);
  EXPECT_EQ(job.note_posted(0, UINT32_MAX).code(), Code::kProtocol);
  EXPECT_EQ(job.posted_step(0), 0u);
  EXPECT_TRUE(job.note_posted(0, kMaxStepsAhead).ok());
  EXPECT_EQ(job.note_posted(0, 1).code(), Code::kProtocol);  // backwards
}

TEST(JobMachine, ARefusedStepChangesNothing) {
  JobMachine job = training_job(1);
  EXPECT_TRUE(job.note_posted(0, 1).ok());
  EXPECT_EQ(job.start_next().step, 1u);
  job.refuse_step();
  EXPECT_EQ(job.committed_step(), 0u);
  EXPECT_EQ(job.activity(), Activity::kNone);
}

TEST(JobMachine, EveryLoaderMustLoad) {
  JobMachine job = attached_job(ComputeType::kFp32, 2, {1, 0}, 2);
  for (const uint32_t rank : {1u, 0u}) {
    EXPECT_EQ(job.phase(), JobPhase::kLoading);
    EXPECT_TRUE(ask_to_load(job, 0, rank).ok());
    finish_load(job);
  }
  EXPECT_EQ(job.phase(), JobPhase::kTraining);
}

TEST(JobMachine, WithoutChunksThereIsNothingToLoad) {
  JobMachine job = attached_job(ComputeType::kFp32, 1, {0, 0});
  EXPECT_EQ(job.phase(), JobPhase::kTraining);
  EXPECT_EQ(ask_to_load(job, 0).code(), Code::kProtocol);
}

TEST(JobMachine, AFaultStopsWhatIsNext) {
  JobMachine job = training_job(1);
  EXPECT_TRUE(job.note_posted(0, 2).ok());
  EXPECT_EQ(job.start_next().step, 1u);
  job.fail({Code::kPeerLost, 0, "first", Code::kPeerLost, "first"}, false);
  job.fail({Code::kTimedOut, 1, "second", Code::kTimedOut, "second"}, false);
  EXPECT_EQ(job.phase(), JobPhase::kEnding);
  EXPECT_EQ(job.activity(), Activity::kStep);  // the committed step still happens
  job.finish_activity();
  EXPECT_EQ(job.finished_step(), 1u);
  EXPECT_EQ(job.start_next().activity, Activity::kNone);  // step 2 does not
  EXPECT_EQ(job.fault()->text, "first");
}

TEST(JobMachine, ADeathLeavesThePostedStepsToHappen) {
  JobMachine job = training_job(2);
  EXPECT_TRUE(job.note_posted(0, 3).ok());
  EXPECT_TRUE(job.note_posted(1, 2).ok());
  EXPECT_EQ(job.start_next().step, 1u);
  job.fail({Code::kPeerLost, 1, "died", Code::kPeerLost, "died"}, true);
  job.finish_activity();
  finish_step(job, 2);
  EXPECT_EQ(job.start_next().activity, Activity::kNone);  // rank 1 never posted step 3
}

TEST(JobMachine, AFaultWhileLoadingStartsNothing) {
  JobMachine job = attached_job(ComputeType::kFp32, 1, {2, 0});
  EXPECT_TRUE(ask_to_load(job, 0).ok());
  EXPECT_TRUE(ask_to_load(job, 1).ok());
  EXPECT_EQ(job.start_next().activity, Activity::kLoad);
  job.fail({Code::kPeerLost, 0, "died", Code::kPeerLost, "died"}, true);
  job.finish_activity();
  EXPECT_EQ(job.start_next().activity, Activity::kNone);
}

TEST(JobMachine, DetachingTogetherIsAnEnd) {
  JobMachine job = training_job(2);
  EXPECT_FALSE(job.detach(0).has_value());
  EXPECT_EQ(job.phase(), JobPhase::kTraining);
  EXPECT_FALSE(job.detach(1).has_value());
  EXPECT_EQ(job.phase(), JobPhase::kEnding);
  EXPECT_FALSE(job.fault().has_value());
  EXPECT_EQ(job.start_next().activity, Activity::kNone);
}

TEST(JobMachine, AStepPostedJustBeforeDetachingHappens) {
  JobMachine job = training_job(1);
  EXPECT_TRUE(job.note_posted(0, 2).ok());
  EXPECT_EQ(job.start_next().step, 1u);
  EXPECT_FALSE(job.detach(0).has_value());
  job.finish_activity();
  finish_step(job, 2);
  EXPECT_EQ(job.start_next().activity, Activity::kNone);
}

TEST(JobMachine, DetachingWhileOthersGoOnIsAFault) {
  JobMachine job = training_job(2);
  EXPECT_TRUE(job.note_posted(0, 1).ok());
  EXPECT_TRUE(job.note_posted(1, 1).ok());
  EXPECT_FALSE(job.detach(1).has_value());
  finish_step(job, 1);  // what it posted still happens
  EXPECT_FALSE(job.waiting_for_detached().has_value());
  EXPECT_TRUE(job.note_posted(0, 2).ok());
  const std::optional<Fault> fault = job.waiting_for_detached();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->rank, 1u);
  EXPECT_NE(fault->others_text.find("rank 1 detached after step 1"), std::string::npos);
}

// And ranks are named by their number in the whole job.
TEST(JobMachine, DetachingBeforeTheJobIsWholeIsAFault) {
  JobMachine job(ComputeType::kFp32, 2, {1, 0}, 1);
  EXPECT_TRUE(job.claim(0, 8).ok());
  EXPECT_NE(job.claim(0, 8).message().find("rank 8 of the job has attached already"),
            std::string::npos);
  job.attached(0);
  const std::optional<Fault> fault = job.detach(0);
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->rank, 0u);  // its place here
  EXPECT_NE(fault->text.find("rank 8 detached"), std::string::npos) << fault->text;
}

TEST(JobMachine, CountsTheLoadsOfASlotAndLetsOneIn) {
  JobMachine machine = attached_job(ComputeType::kFp32, 1, {2, 2});
  const auto load = [&](uint32_t chunk, uint32_t slot) {
    return machine.request_load({0, chunk, slot, shm::LoadPart::kWhole}).code();
  };
  EXPECT_EQ(load(2, 0), Code::kOk);
  EXPECT_EQ(load(3, 0), Code::kProtocol);  // elixird has not taken what lies there
  EXPECT_EQ(load(3, 1), Code::kOk);
  EXPECT_EQ(load(1, 1), Code::kProtocol);
  EXPECT_EQ(machine.loads_taken(0, 0), 0u);
  for (int taken = 0; taken < 2; ++taken) finish_load(machine);
  EXPECT_EQ(machine.loads_taken(0, 0), 1u);
  EXPECT_EQ(machine.loads_taken(0, 1), 1u);
  EXPECT_EQ(load(0, 0), Code::kOk);
}

TEST(JobMachine, FrozenChunksAreLoadedWholeWhateverTheType) {
  JobMachine machine = attached_job(ComputeType::kBf16, 1, {1, 2});
  const auto load = [&](uint32_t chunk, shm::LoadPart part) {
    const Status status = machine.request_load({0, chunk, chunk, part});
    if (status.ok()) finish_load(machine);
    return status;
  };
  EXPECT_EQ(load(1, shm::LoadPart::kHighHalf).code(), Code::kProtocol);
  EXPECT_TRUE(load(1, shm::LoadPart::kWhole).ok());
  EXPECT_TRUE(load(2, shm::LoadPart::kWhole).ok());
  EXPECT_EQ(load(3, shm::LoadPart::kWhole).code(), Code::kProtocol);
  EXPECT_EQ(load(0, shm::LoadPart::kWhole).code(), Code::kProtocol);
  EXPECT_TRUE(load(0, shm::LoadPart::kHighHalf).ok());
  EXPECT_TRUE(load(0, shm::LoadPart::kLowHalf).ok());
  EXPECT_EQ(machine.phase(), JobPhase::kTraining);
}

}  // namespace
}  // namespace elixir::daemon
