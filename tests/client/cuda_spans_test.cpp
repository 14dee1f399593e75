// When copies and collectives ran on a CUDA device, over a fake CUDA whose clock stands still but
// for copies: each takes as many milliseconds as it has bytes.

#include "base/clock.h"
#include "tests/client/cuda_device_fixture.h"
#include "tests/support/matchers.h"

namespace elixir::spans {
namespace {

constexpr int64_t kMs = 1'000'000;

class CudaSpansTest : public CudaDeviceTest {
 protected:
  void up(size_t bytes) { device_->upload(Stream::kUpload, block_, host_, bytes); }
  void down(size_t bytes) { device_->download(Stream::kDownload, host_, block_, bytes); }
  void wait_for(Stream stream) {
    device_->record(event_, stream);
    device_->synchronize(event_);
  }

  std::byte* const block_ = device_memory(64);
  std::byte host_[64] = {};
  const DeviceEvent event_ = device_->create_event();
};

TEST_F(CudaSpansTest, NothingIsTimedUnlessAskedFor) {
  const int records = record_->count("record");
  up(64);
  EXPECT_EQ(record_->count("record"), records);
  wait_for(Stream::kUpload);
  EXPECT_EQ(device_->link_times().h2d_busy_ns, 0u);
  EXPECT_TRUE(device_->take_spans().empty());
  EXPECT_EQ(record_->live_events, 1);
}

TEST_F(CudaSpansTest, BusyTimesAloneKeepNoSpans) {
  device_->time_copies();
  up(10);
  wait_for(Stream::kUpload);
  EXPECT_EQ(device_->link_times().h2d_busy_ns, 10 * kMs);
  EXPECT_TRUE(device_->take_spans().empty());
  device_->keep_spans();
  up(3);
  wait_for(Stream::kUpload);
  EXPECT_EQ(device_->link_times().h2d_busy_ns, 13 * kMs);
  EXPECT_EQ(device_->take_spans().size(), 1u);
}

TEST_F(CudaSpansTest, ASpanIsWhenItsCopyRanOnTheHostsClock) {
  const int64_t before_ns = monotonic_ns();
  device_->keep_spans();
  const int64_t after_ns = monotonic_ns();
  up(10);
  up(30);
  down(5);
  EXPECT_TRUE(device_->take_spans().empty());  // none is done
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
  wait_for(Stream::kUpload);
  EXPECT_EQ(device_->link_times().h2d_busy_ns, 40 * kMs);
  EXPECT_EQ(device_->link_times().d2h_busy_ns, 0u);
  wait_for(Stream::kDownload);
  EXPECT_EQ(device_->link_times().d2h_busy_ns, 5 * kMs);

  const std::vector<StreamSpan> spans = device_->take_spans();
  ASSERT_EQ(spans.size(), 3u);
  const int64_t anchor_ns = spans[0].begin_ns;  // the clock stood still until the first copy
  EXPECT_GE(anchor_ns, before_ns);
  EXPECT_LE(anchor_ns, after_ns);
  const int64_t begins_ms[] = {0, 10, 40}, lengths_ms[] = {10, 30, 5};
  const Stream rows[] = {Stream::kUpload, Stream::kUpload, Stream::kDownload};
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].stream, rows[i]);
    EXPECT_EQ(spans[i].begin_ns - anchor_ns, begins_ms[i] * kMs);
    EXPECT_EQ(spans[i].end_ns - spans[i].begin_ns, lengths_ms[i] * kMs);
    EXPECT_EQ(spans[i].bytes, static_cast<uint64_t>(lengths_ms[i]));
  }
  EXPECT_TRUE(device_->take_spans().empty());
}

TEST_F(CudaSpansTest, ATransferOfAnotherStreamCountsForItsDirection) {
  device_->keep_spans();
  device_->upload(Stream::kCompute, block_, host_, 7);
  wait_for(Stream::kCompute);
  EXPECT_EQ(device_->link_times().h2d_busy_ns, 7 * kMs);
  EXPECT_EQ(device_->take_spans().at(0).stream, Stream::kUpload);
}

// A collective is here a copy on its stream.
TEST_F(CudaSpansTest, ACollectiveLastsFromEnterToTheNextRecord) {
  device_->keep_spans();
  {
    device_->begin_collective(Stream::kReduce);
    device_->copy(Stream::kReduce, block_, block_ + 32, 20);
  }
  wait_for(Stream::kReduce);
  device_->copy(Stream::kReduce, block_, block_ + 32, 9);
  wait_for(Stream::kReduce);
  const std::vector<StreamSpan> spans = device_->take_spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].stream, Stream::kReduce);
  EXPECT_EQ(spans[0].end_ns - spans[0].begin_ns, 20 * kMs);
  EXPECT_EQ(spans[0].bytes, 0u);
  EXPECT_EQ(device_->link_times().h2d_busy_ns + device_->link_times().d2h_busy_ns, 0u);
}

TEST_F(CudaSpansTest, EventsAreUsedAgainAndGivenBack) {
  device_->keep_spans();
  for (int i = 0; i < 100; ++i) {
    up(1);
    down(1);
    wait_for(Stream::kUpload);
    wait_for(Stream::kDownload);
    EXPECT_EQ(device_->take_spans().size(), 2u);
  }
  EXPECT_LT(record_->live_events, 10);
  device_.reset();
  EXPECT_EQ(record_->live_events, 0);
}

TEST_F(CudaSpansTest, ARefusedQuestionIsThrown) {
  device_->keep_spans();
  up(1);
  wait_for(Stream::kUpload);
  cuda_->fail("elapsed", CudaResult::kIllegalAddress);
  EXPECT_THAT(thrown([&] { device_->take_spans(); }).message(),
              HasSubstr("CUDA failed to ask when copies ran"));
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
}

}  // namespace
}  // namespace elixir::spans
