// What a trainer can do wrong, and that only its own job pays for it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>

#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/daemon/told.h"

namespace elixir::testing::faults {
namespace {

constexpr uint64_t kChunkNumel = 128 * 11;

// A bystander trains through every test; at the end it must have noticed nothing.
class Faults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = std::make_unique<DaemonProcess>(std::vector<std::string>{"--workers", "2"});
  }
  static void TearDownTestSuite() { daemon_.reset(); }

  void SetUp() override {
    bystander_ = start("bystander", 2);
    ASSERT_TRUE(bystander_->step(1).ok());
  }
  void TearDown() override {
    ASSERT_TRUE(daemon_->running()) << daemon_->log();
    EXPECT_TRUE(bystander_->step(2).ok());
    Reference reference(bystander_->model());
    for (uint32_t step = 1; step <= 2; ++step) reference.step(make_record(step, 2));
    EXPECT_TRUE(bystander_->compare(reference).ok());
    bystander_->detach();
  }

  std::unique_ptr<FakeJob> start(const std::string& name, uint32_t ranks) {
    return must(FakeJob::start({.folder = daemon_->folder(),
                                .name = name,
                                .model = make_model(ComputeType::kFp32, ranks, 2, kChunkNumel)}));
  }
  // One of two ranks.
  FakeTrainer::Options rank_of(const std::string& name, uint32_t rank) {
    return FakeJob({.folder = daemon_->folder(),
                    .name = name,
                    .model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel)})
        .options_of(rank);
  }

  static inline std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<FakeJob> bystander_;
};

TEST_F(Faults, ADeadRankIsNamedToTheOthersAndTheJobCanStartAgain) {
  const std::string name = fmt::format("rank 1 (pid {})", ::getpid());
  for (int round = 0; round < 2; ++round) {
    auto job = start("mortal", 3);
    ASSERT_TRUE(job->step(1).ok());
    job->rank(1).die();
    for (const uint32_t rank : {0u, 2u}) expect_ended(job->rank(rank), Code::kPeerLost, 1, name);
  }
}

// By whichever check it fails; how messages are checked is tests/shm/message_test.cpp's.
TEST_F(Faults, UndecodableMessagesEndTheirSession) {
  const struct {
    const char* text;
    Code code;
    std::function<void(shm::AwaitReady&)> spoil;
    size_t bytes = sizeof(shm::AwaitReady);
  } cases[] = {
      {"bytes", Code::kProtocol, [](auto&) {}, 3},
      {"bytes", Code::kProtocol, [](auto&) {}, 0},
      {"version", Code::kVersionMismatch, [](auto& m) { ++m.header.version; }},
      {"checksum", Code::kProtocol, [](auto& m) { ++m.header.request_id; }},
      {"type 99", Code::kProtocol,
       [](auto& m) {
         m.header.type = 99;
         m.header.checksum = 0;
         m.header.checksum = shm::message_checksum(std::as_bytes(std::span(&m, 1)));
       }},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    shm::AwaitReady message{};
    shm::seal_message(message, 1);
    one.spoil(message);
    auto job = start("spoiler", 2);
    job->rank(1).send_raw(std::as_bytes(std::span(&message, 1)).first(one.bytes));
    expect_ended(job->rank(1), one.code, 1, one.text);
    expect_ended(job->rank(0), Code::kPeerLost, 1, one.text);
  }
}

TEST_F(Faults, WhatComesBeforeHelloConcernsNoSession) {
  const auto trainer = must(FakeTrainer::attach(rank_of("quiet", 0)));
  const auto other = must(FakeTrainer::attach(rank_of("quiet", 1)));
  trainer->send_raw(std::vector<std::byte>(5));
  trainer->send(shm::AwaitReady{}, 1);
  shm::Hello forged{};
  forged.session_id = 1;
  trainer->send(forged, 2);
  EXPECT_TRUE(trainer->await_peers().ok());
  EXPECT_TRUE(trainer->hello().ok());  // the first answer is to this
  EXPECT_NE(daemon_->log().find("event=control_dropped"), std::string::npos);
}

TEST_F(Faults, DyingBetweenAttachAndHello) {
  const auto first = must(FakeTrainer::attach(rank_of("early", 0)));
  const auto second = must(FakeTrainer::attach(rank_of("early", 1)));
  ASSERT_TRUE(first->await_peers().ok());
  second->die();
  expect_ended(*first, Code::kPeerLost, 1, "died");
  // Also while the others have not come yet; then the name is free again.
  must(FakeTrainer::attach(rank_of("early", 0)))->die();
  auto job = start("early", 2);
  EXPECT_TRUE(job->step(1).ok());
}

// ---- attach ----

class Attach : public Faults {
 protected:
  // What a request is refused with that is right but for `spoil`. `fd`: in place of its table's;
  // -1: none.
  Status refused(const std::function<void(shm::AttachRequest&)>& spoil,
                 std::optional<int> fd = std::nullopt) {
    const FakeModel model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel);
    const std::vector<std::byte> table = shm::encode_table(model.places);
    const UniqueFd table_fd = must(shm::write_table_fd(table));
    if (table_file_bytes_ > 0) {
      EXPECT_EQ(::ftruncate(table_fd.get(), static_cast<off_t>(table_file_bytes_)), 0);
    }
    shm::AttachRequest request{};
    shm::set_text(request.job, "refused");
    request.shape = model.shape;
    request.position.local_ranks = 2;
    request.table = {table.size(), shm::table_xxh64(table)};
    request.rules.accumulate = 1;
    shm::seal_message(request);
    const uint32_t version = request.header.version;
    spoil(request);
    if (request.header.version == version) shm::seal_message(request);
    const UniqueFd socket = must(shm::connect_attach(daemon_->folder().attach_socket()));
    std::vector<int> fds = {fd.value_or(table_fd.get())};
    if (fds[0] < 0) fds.clear();
    ELIXIR_RETURN_IF_ERROR(
        shm::send_packet(socket.get(), std::as_bytes(std::span(&request, 1)), fds, 1000));
    const shm::Packet packet = must(shm::receive_packet(socket.get(), FakeTrainer::kDeadlineMs));
    const auto refusal = must(shm::decode_message<shm::Refusal>(packet.bytes));
    return Status(static_cast<Code>(refusal.code), std::string(shm::get_text(refusal.text)));
  }

  uint64_t table_file_bytes_ = 0;  // where its memfd is longer than the table
};

// One row of each check; limits of shapes are tests/shm/shape_test.cpp's.
TEST_F(Attach, BadRequestsAreRefusedByName) {
  const struct {
    Code code;
    const char* text;
    std::function<void(shm::AttachRequest&)> spoil;
  } cases[] = {
      {Code::kVersionMismatch, "layout version", [](auto& r) { ++r.header.version; }},
      {Code::kInvalidArgument, "rank 2 of a job of 2", [](auto& r) { r.position.rank = 2; }},
      {Code::kInvalidArgument, "local rank 1 of 2", [](auto& r) { r.position.local_rank = 1; }},
      {Code::kInvalidArgument, "local rank 0 of 1", [](auto& r) { r.position.local_ranks = 1; }},
      {Code::kProtocol, "pins_params is 2", [](auto& r) { r.wishes.pins_params = 2; }},
      {Code::kInvalidArgument, "ranks", [](auto& r) { r.shape.ranks = 0; }},
      {Code::kProtocol, "3 moments", [](auto& r) { r.shape.n_moments = 3; }},
      {Code::kProtocol, "trained parameters",
       [](auto& r) { r.shape.n_parameters = shm::kMaxParameters + 1; }},
      {Code::kInvalidArgument, "spare slots",
       [](auto& r) { r.shape.n_spare_slots = r.shape.n_chunks + 1; }},
      {Code::kProtocol, "checksum announced", [](auto& r) { ++r.table.xxh64; }},
      {Code::kProtocol, "elements have at most", [](auto& r) { r.table.bytes = UINT64_MAX; }},
      {Code::kProtocol, "table ends at byte", [](auto& r) { r.table.bytes += 1; }},
      {Code::kProtocol, "outside or misaligned", [](auto& r) { r.shape.chunk_numel = 256; }},
      {Code::kInvalidArgument, "accumulate is 0", [](auto& r) { r.rules.accumulate = 0; }},
      {Code::kInvalidArgument, "accumulate is 65537", [](auto& r) { r.rules.accumulate = 65537; }},
      {Code::kProtocol, "immediate is 2", [](auto& r) { r.rules.immediate = 2; }},
      {Code::kProtocol, "norms 7", [](auto& r) { r.rules.norms = 7; }},
      {Code::kInvalidArgument, "use early or deferred updates",
       [](auto& r) { r.rules.immediate = r.rules.norms = 1; }},
      {Code::kProtocol, "early 2", [](auto& r) { r.rules.early = 2; }},
      {Code::kProtocol, "one of early and immediate",
       [](auto& r) { r.rules.immediate = r.rules.early = 1; }},
  };
  for (const auto& one : cases) {
    expect_refused(refused(one.spoil), one.code, {one.text});
  }
}

TEST_F(Attach, ANameThatWouldForgeALineOfTheLogIsRefused) {
  for (const char* name : {"a\nerror elixird event=job_over", "a b", "a'b", "a\x1b[31m", ""}) {
    expect_refused(refused([&](auto& r) { shm::set_text(r.job, name); }), Code::kInvalidArgument,
                   {"a job's name"});
  }
  EXPECT_EQ(daemon_->log().find("\x1b"), std::string::npos);
  start("run-7.3:node@a+b", 1)->detach();
}

// Sparse, a memfd of any length costs a trainer nothing, and elixird memory and a third of a
// second.
TEST_F(Attach, ATableLongerThanItsChunksCanFillIsNotRead) {
  table_file_bytes_ = shm::kMaxTableBytes;
  const uint64_t most_bytes = shm::most_table_bytes(rank_of("", 0).shape);
  ASSERT_LT(most_bytes + 1, shm::kMaxTableBytes);
  for (const uint64_t bytes : {most_bytes + 1, shm::kMaxTableBytes}) {
    const Status status = refused([bytes](auto& r) { r.table.bytes = bytes; });
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_EQ(status.message(), fmt::format("a parameter table of {} bytes; 1 chunks of {} "
                                            "elements have at most {}",
                                            bytes, kChunkNumel, most_bytes));
  }
  // As long as it may be, it is read.
  expect_refused(refused([most_bytes](auto& r) { r.table.bytes = most_bytes; }), Code::kProtocol,
                 {"checksum announced"});
}

TEST_F(Attach, OnlyAMemfdIsRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  for (const int fd : {read_end.get(), -1}) {
    // Not for what came of reading it.
    expect_refused(refused([](auto&) {}, fd), Code::kProtocol, {"without a memfd"});
  }
}

TEST_F(Attach, RanksOfAJobHaveOnePlanAndOnePlaceEach) {
  const auto first = must(FakeTrainer::attach(rank_of("plan", 0)));
  FakeTrainer::Options renamed = rank_of("plan", 1);
  renamed.places[0].name = "renamed";
  expect_refused(FakeTrainer::attach(renamed).status(), Code::kInvalidArgument,
                 {"another plan", "'renamed'"});
  expect_refused(FakeTrainer::attach(rank_of("plan", 0)).status(), Code::kInvalidArgument,
                 {"attached already"});
  // The refusals cost the first one nothing.
  const auto second = must(FakeTrainer::attach(rank_of("plan", 1)));
  EXPECT_TRUE(first->await_peers().ok());
}

}  // namespace
}  // namespace elixir::testing::faults
