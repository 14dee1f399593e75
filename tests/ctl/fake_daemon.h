#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

namespace elixir::ctl {

// Answers every request with `frames`; without frames it never answers.
class FakeDaemon {
 public:
  // The first `unanswered` requests get no answer.
  FakeDaemon(const std::string& endpoint, std::vector<std::string> frames, int unanswered = 0)
      : frames_(std::move(frames)),
        unanswered_(unanswered),
        socket_(context_, zmq::socket_type::router) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.bind(endpoint);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeDaemon() {
    stop_ = true;
    thread_.join();
  }
  int requests() const { return requests_; }

 private:
  void serve() {
    while (!stop_) {
      zmq::pollitem_t item{socket_.handle(), 0, ZMQ_POLLIN, 0};
      if (zmq::poll(&item, 1, std::chrono::milliseconds(20)) == 0) continue;
      zmq::message_t peer, request;
      (void)socket_.recv(peer);
      (void)socket_.recv(request);
      EXPECT_FALSE(request.more());
      EXPECT_EQ(request.to_string(), "status");
      ++requests_;
      if (frames_.empty() || requests_ <= unanswered_) continue;
      socket_.send(peer, zmq::send_flags::sndmore);
      for (size_t i = 0; i < frames_.size(); ++i) {
        const bool last = i + 1 == frames_.size();
        socket_.send(zmq::buffer(frames_[i]),
                     last ? zmq::send_flags::none : zmq::send_flags::sndmore);
      }
    }
  }

  const std::vector<std::string> frames_;
  const int unanswered_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> requests_ = 0;
  std::thread thread_;
};

}  // namespace elixir::ctl
