// Traces: read back with a JSON parser.

#include "client/trace/trace_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

using nlohmann::json;

class TraceWriterTest : public ::testing::Test {
 protected:
  TraceWriterTest() {
    std::string name = (std::filesystem::temp_directory_path() / "elixir-trace-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/trace.json";
  }
  ~TraceWriterTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<TraceWriter> open(uint32_t rank = 3, int64_t elixird_pid = 77) {
    return must(TraceWriter::open({.path = path_, .rank = rank, .elixird_pid = elixird_pid}));
  }
  json read() const { return json::parse(std::ifstream(path_)); }
  // The complete events.
  static std::vector<json> events(const json& trace) {
    std::vector<json> found;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") == "X") found.push_back(event);
    }
    return found;
  }

  std::string folder_, path_;
};

int64_t epoch_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

TEST_F(TraceWriterTest, AnEmptyTraceIsValidAndNamesItsRows) {
  ASSERT_TRUE(open()->close().ok());
  const json trace = read();
  std::map<std::pair<int64_t, int64_t>, std::string> names;
  for (const json& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("ph"), "M");
    EXPECT_TRUE(names
                    .insert({{event.at("pid"), event.at("tid")},
                             event.at("name").get<std::string>() + ": " +
                                 event.at("args").at("name").get<std::string>()})
                    .second);
  }
  std::vector<std::string> of_trainer, of_elixird;
  for (const auto& [row, name] : names) {
    (row.first == ::getpid() ? of_trainer : of_elixird).push_back(name);
    EXPECT_TRUE(row.first == ::getpid() || row.first == 77) << row.first;
  }
  EXPECT_THAT(of_trainer,
              UnorderedElementsAre("process_name: trainer, rank 3", "thread_name: compute",
                                   "thread_name: gather", "thread_name: reduce", "thread_name: D2H",
                                   "thread_name: H2D"));
  EXPECT_THAT(of_elixird,
              UnorderedElementsAre("process_name: elixird", "thread_name: update, rank 3"));
}

TEST_F(TraceWriterTest, EventsLieOnTheUnixEpochsClockInTheirRows) {
  const std::unique_ptr<TraceWriter> writer = open();
  const int64_t begin_ns = monotonic_ns(), begin_epoch_ns = epoch_ns();
  writer->span(TraceRow::kCompute, "step", begin_ns, begin_ns + 5'000'001, {.step = 4});
  writer->span(TraceRow::kUpload, "chunk up", begin_ns + 1'000'000, begin_ns + 2'000'500,
               {.step = 4, .chunk = 0, .bytes = 4096});
  writer->span(TraceRow::kUpdate, "update", begin_ns + 3'000'000, begin_ns + 2'000'000);
  ASSERT_TRUE(writer->close().ok());

  const json trace = read();
  const std::vector<json> found = events(trace);
  ASSERT_EQ(found.size(), 3u);
  const auto base_ns = trace.at("baseTimeNanoseconds").get<int64_t>();
  EXPECT_EQ(base_ns % (int64_t{7'889'238} * 1'000'000'000), 0);  // as torch's profiler
  const double ts = found[0].at("ts");
  constexpr double kBetweenUs = 10e6;  // the two clocks' readings, where this thread was held up
  EXPECT_NEAR(ts, static_cast<double>(begin_epoch_ns - base_ns) * 1e-3, kBetweenUs);
  EXPECT_NEAR(found[1].at("ts").get<double>() - ts, 1000, 0.01);
  EXPECT_EQ(found[0].at("dur"), 5000.001);
  EXPECT_EQ(found[1].at("dur"), 1000.5);
  EXPECT_EQ(found[2].at("dur"), 0.0);
  EXPECT_EQ(found[0].at("args"), json({{"step", 4}}));
  EXPECT_EQ(found[1].at("args"), json({{"step", 4}, {"chunk", 0}, {"bytes", 4096}}));
  EXPECT_EQ(found[2].at("args"), json::object());
  EXPECT_EQ(found[0].at("name"), "step");
  EXPECT_EQ(found[0].at("pid"), ::getpid());
  EXPECT_EQ(found[0].at("pid"), found[1].at("pid"));
  EXPECT_NE(found[0].at("tid"), found[1].at("tid"));
  EXPECT_EQ(found[2].at("pid"), 77);
  // Each row is one that has a name.
  for (const json& event : found) {
    int named = 0;
    for (const json& other : trace.at("traceEvents")) {
      named += other.at("name") == "thread_name" && other.at("pid") == event.at("pid") &&
               other.at("tid") == event.at("tid");
    }
    EXPECT_EQ(named, 1) << event;
  }
  // The copy lies in the step.
  EXPECT_LE(ts, found[1].at("ts").get<double>());
  EXPECT_GE(ts + 5000.001, found[1].at("ts").get<double>() + 1000.5);
}

TEST_F(TraceWriterTest, ARowOfAStreamHasItsName) {
  const std::pair<Stream, const char*> rows[] = {{Stream::kCompute, "compute"},
                                                 {Stream::kUpload, "H2D"},
                                                 {Stream::kDownload, "D2H"},
                                                 {Stream::kGather, "gather"},
                                                 {Stream::kReduce, "reduce"}};
  const std::unique_ptr<TraceWriter> writer = open();
  for (const auto& [stream, name] : rows) writer->span(trace_row(stream), name, 0, 1);
  ASSERT_TRUE(writer->close().ok());
  const json trace = read();
  for (const json& event : events(trace)) {
    for (const json& row : trace.at("traceEvents")) {
      if (row.at("name") == "thread_name" && row.at("tid") == event.at("tid") &&
          row.at("pid") == event.at("pid")) {
        EXPECT_EQ(row.at("args").at("name"), event.at("name"));
      }
    }
  }
}

TEST_F(TraceWriterTest, AnyNameGivesValidJson) {
  const std::unique_ptr<TraceWriter> writer = open();
  writer->span(TraceRow::kCompute, "a \"quoted\" \\ back\\slash\n\t\x01", 0, 1);
  writer->span(TraceRow::kCompute, "\xff\xc3-\x80", 0, 1);
  writer->span(TraceRow::kCompute, std::string(100'000, '"').c_str(), 0, 1);
  ASSERT_TRUE(writer->close().ok());
  const std::vector<json> found = events(read());
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].at("name"), "a \"quoted\" \\ back\\slash\n\t\x01");
  EXPECT_EQ(found[1].at("name"),
            "?"
            "?-?");
  EXPECT_EQ(found[2].at("name").get<std::string>().size(), 256u);
}

TEST_F(TraceWriterTest, IsWrittenAsItGoesByAnyThread) {
  constexpr int kThreads = 4, kEach = 5000;
  const std::unique_ptr<TraceWriter> writer = open();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        writer->span(TraceRow::kDownload, "chunk down", i, i + 1, {.step = t, .chunk = i});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  struct stat before {};
  ASSERT_EQ(::stat(path_.c_str(), &before), 0);
  EXPECT_GT(before.st_size, kThreads * kEach * 80);  // all but what is in the buffer
  ASSERT_TRUE(writer->close().ok());
  std::vector<std::vector<int>> seen(kThreads, std::vector<int>(kEach));
  for (const json& event : events(read())) {
    ++seen.at(event.at("args").at("step")).at(event.at("args").at("chunk"));
  }
  EXPECT_EQ(seen, std::vector<std::vector<int>>(kThreads, std::vector<int>(kEach, 1)));
}

TEST_F(TraceWriterTest, IsClosedWhenItEndsAndWritesNothingAfterwards) {
  std::unique_ptr<TraceWriter> writer = open();
  writer->span(TraceRow::kGather, "gather", 0, 1);
  ASSERT_TRUE(writer->close().ok());
  writer->span(TraceRow::kGather, "late", 0, 1);
  EXPECT_TRUE(writer->close().ok());
  EXPECT_EQ(events(read()).size(), 1u);
  writer = open();  // replaces it
  writer->span(TraceRow::kGather, "one", 0, 1);
  writer->span(TraceRow::kGather, "two", 0, 1);
  writer.reset();
  EXPECT_EQ(events(read()).size(), 2u);
}

TEST_F(TraceWriterTest, AFileThatCannotBeOpenedIsNamedWithTheCause) {
  const Status status = TraceWriter::open({.path = folder_ + "/missing/trace.json"}).status();
  expect_refused(status, Code::kInvalidArgument,
                 {folder_ + "/missing/trace.json", "No such file or directory"});
}

TEST_F(TraceWriterTest, AFullDiskIsSaidWhenItIsClosed) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  path_ = "/dev/full";
  const std::unique_ptr<TraceWriter> writer = open();
  for (int i = 0; i < 5000; ++i) writer->span(TraceRow::kCompute, "operator", i, i + 1);
  for (int i = 0; i < 2; ++i) {
    const Status status = writer->close();
    expect_refused(status, Code::kInvalidArgument, {"/dev/full: No space left on device"});
  }
}

}  // namespace
}  // namespace elixir
