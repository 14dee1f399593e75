// The fake NCCL on the fake CUDA runtime, without torch: ranks are processes, each on a device of
// its own.

#include <gtest/gtest.h>
#include <nccl.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/client/forked_ranks.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace elixir {
namespace {

constexpr size_t kCount = 200'000;  // a rank's; in more than one piece

#define OK(call) ELIXIR_CHECK((call) == 0, "{}", #call)

// One rank: its device, two streams and a communicator.
struct Rank {
  Rank(uint32_t rank, int ranks, const ncclUniqueId& id) : ranks(ranks) {
    OK(cudaSetDevice(static_cast<int>(rank)));
    for (cudaStream_t& stream : streams) OK(cudaStreamCreateWithFlags(&stream, 0));
    OK(ncclCommInitRank(&comm, ranks, id, static_cast<int>(rank)));
  }

  template <typename T>
  T* upload(const std::vector<T>& values) const {
    void* memory = nullptr;
    OK(cudaMalloc(&memory, values.size() * sizeof(T)));
    OK(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T*>(memory);
  }
  template <typename T>
  std::vector<T> download(const T* memory, size_t count) const {
    for (const cudaStream_t stream : streams) OK(cudaStreamSynchronize(stream));
    std::vector<T> values(count);
    OK(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  ncclResult_t async_error() const {
    ncclResult_t error = ncclSuccess;
    OK(ncclCommGetAsyncError(comm, &error));
    return error;
  }
  bool idle() const { return cudaStreamQuery(streams[0]) == cudaSuccess; }

  const int ranks;
  cudaStream_t streams[2];
  ncclComm_t comm = nullptr;
};

// Thirds: their sums depend on the order.
float value_of(uint32_t rank, size_t i) {
  return static_cast<float>((rank * 7919 + i * 104729) % 10007) / 3.0f - 1000;
}

uint16_t bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

std::vector<float> values_of(uint32_t rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
  return values;
}

class FakeNccl : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("FAKE_CUDA_DEVICES", "4", 1); }
  void TearDown() override {
    for (const char* name : {"FAKE_NCCL_ERROR_RANK", "FAKE_NCCL_ERROR_AT", "FAKE_NCCL_ERROR_RESULT",
                             "FAKE_NCCL_ERROR_AT_CALL", "FAKE_NCCL_TELLS_PEERS"}) {
      ::unsetenv(name);
    }
  }

  // The body returns 0 when all was as it should be, else the line.
  void run(uint32_t ranks, const std::function<int(uint32_t, const ncclUniqueId&)>& body) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ForkedRanks forked(ranks, [&](uint32_t rank, const std::vector<Member>&, Blackboard&) {
      return body(rank, id);
    });
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(forked.wait(rank), 0) << "a line of rank " << rank << ", modulo 256";
    }
  }
};

#define EXPECT_OR_LINE(condition) \
  if (!(condition)) return __LINE__ % 256 == 0 ? 1 : __LINE__ % 256

TEST_F(FakeNccl, GathersAndReducesInPlace) {
  run(3, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 3, id);
    float* block = me.upload(values_of(rank, 3 * kCount));
    OK(ncclReduceScatter(block, block + rank * kCount, kCount, ncclFloat, ncclSum, me.comm,
                         me.streams[0]));
    OK(ncclAllGather(block + rank * kCount, block, kCount, ncclFloat, me.comm, me.streams[0]));
    const std::vector<float> all = me.download(block, 3 * kCount);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_OR_LINE(all[i] == value_of(0, i) + value_of(1, i) + value_of(2, i));
    }
    OK(ncclCommDestroy(me.comm));
    return 0;
  });
}

// In the order of ranks, in FP32, rounded once.
TEST_F(FakeNccl, SumsOf16BitsAreRoundedOnce) {
  run(3, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 3, id);
    std::vector<uint16_t> mine(kCount);
    for (size_t i = 0; i < kCount; ++i) mine[i] = bf16(value_of(rank, i));
    uint16_t* block = me.upload(mine);
    OK(ncclAllReduce(block, block, kCount, ncclBfloat16, ncclSum, me.comm, me.streams[0]));
    const std::vector<uint16_t> sums = me.download(block, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (uint32_t other = 0; other < 3; ++other) sum += from_bf16(bf16(value_of(other, i)));
      EXPECT_OR_LINE(sums[i] == bf16(sum));
    }
    return 0;
  });
}

TEST_F(FakeNccl, CollectivesOfTwoStreamsKeepTheirOrder) {
  run(2, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 2, id);
    float* blocks[2] = {me.upload(values_of(rank, kCount)), me.upload(values_of(rank, 2 * kCount))};
    for (int round = 0; round < 20; ++round) {
      OK(ncclAllReduce(blocks[0], blocks[0], kCount, ncclFloat, ncclSum, me.comm,
                       me.streams[rank]));
      OK(ncclAllReduce(blocks[1], blocks[1], 2 * kCount, ncclFloat, ncclSum, me.comm,
                       me.streams[1 - rank]));
    }
    // Each further round doubles the sums of the first.
    EXPECT_OR_LINE(me.download(blocks[1], kCount)[3] ==
                   std::ldexp(value_of(0, 3) + value_of(1, 3), 19));
    EXPECT_OR_LINE(me.async_error() == ncclSuccess);
    return 0;
  });
}

TEST_F(FakeNccl, WhatElixirNeverReachesSaysSo) {
  run(1, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 1, id);
    float* block = me.upload(values_of(rank, 8));
    EXPECT_OR_LINE(ncclBroadcast(block, block, 8, ncclFloat, 0, me.comm, me.streams[0]) ==
                   ncclInvalidUsage);
    EXPECT_OR_LINE(std::strstr(ncclGetLastError(me.comm), "ncclBroadcast is not in the fake"));
    EXPECT_OR_LINE(ncclAllReduce(block, block, 8, ncclFloat, ncclMax, me.comm, me.streams[0]) ==
                   ncclInvalidArgument);
    return 0;
  });
}

TEST_F(FakeNccl, ARankThatDoesNotJoinIsWaitedForUntilTheAbort) {
  run(2, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 2, id);
    if (rank == 1) return 0;
    float* block = me.upload(values_of(rank, 2 * kCount));
    OK(ncclAllGather(block, block, kCount, ncclFloat, me.comm, me.streams[0]));
    // cannot fail by chance: nothing but the abort ends what waits for the other rank.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_OR_LINE(!me.idle());
    EXPECT_OR_LINE(me.async_error() == ncclSuccess);
    OK(ncclCommAbort(me.comm));
    EXPECT_OR_LINE(eventually([&] { return me.idle(); }));
    return 0;
  });
}

TEST_F(FakeNccl, AnInjectedErrorIsAsynchronousAndOfOneRank) {
  ::setenv("FAKE_NCCL_ERROR_RANK", "1", 1);
  ::setenv("FAKE_NCCL_ERROR_AT", "2", 1);
  run(2, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 2, id);
    float* block = me.upload(values_of(rank, 2 * kCount));
    for (int i = 0; i < 3; ++i) {
      OK(ncclAllGather(block, block, kCount, ncclFloat, me.comm, me.streams[0]));
    }
    if (rank == 1) {
      EXPECT_OR_LINE(eventually([&] { return me.async_error() == ncclSystemError; }));
    }
    // cannot fail by chance: nothing but the abort ends what waits for the other rank.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_OR_LINE(!me.idle());
    EXPECT_OR_LINE(rank == 1 || me.async_error() == ncclSuccess);
    OK(ncclCommAbort(me.comm));
    EXPECT_OR_LINE(eventually([&] { return me.idle(); }));
    return 0;
  });
}

TEST_F(FakeNccl, PeersCanBeToldOfAnError) {
  ::setenv("FAKE_NCCL_ERROR_RANK", "1", 1);
  ::setenv("FAKE_NCCL_TELLS_PEERS", "1", 1);
  run(2, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 2, id);
    float* block = me.upload(values_of(rank, 2 * kCount));
    OK(ncclAllGather(block, block, kCount, ncclFloat, me.comm, me.streams[0]));
    const ncclResult_t expected = rank == 1 ? ncclSystemError : ncclRemoteError;
    EXPECT_OR_LINE(eventually([&] { return me.async_error() == expected; }));
    OK(ncclCommAbort(me.comm));
    return 0;
  });
}

TEST_F(FakeNccl, AnInjectedErrorCanBeTheCalls) {
  ::setenv("FAKE_NCCL_ERROR_RANK", "0", 1);
  ::setenv("FAKE_NCCL_ERROR_AT_CALL", "1", 1);
  ::setenv("FAKE_NCCL_ERROR_RESULT", std::to_string(ncclInternalError).c_str(), 1);
  run(2, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 2, id);
    float* block = me.upload(values_of(rank, 2 * kCount));
    const ncclResult_t result =
        ncclAllGather(block, block, kCount, ncclFloat, me.comm, me.streams[0]);
    EXPECT_OR_LINE(result == (rank == 0 ? ncclInternalError : ncclSuccess));
    OK(ncclCommAbort(me.comm));
    return 0;
  });
}

// NCCL itself would hang, or move wrong bytes.
TEST_F(FakeNccl, RanksThatMakeDifferentCollectivesAreFoundOut) {
  run(2, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 2, id);
    float* block = me.upload(values_of(rank, 2 * kCount));
    OK(ncclAllGather(block, block, kCount - rank, ncclFloat, me.comm, me.streams[0]));
    EXPECT_OR_LINE(eventually([&] { return me.async_error() == ncclInvalidUsage; }));
    EXPECT_OR_LINE(std::strstr(ncclGetLastError(me.comm), "all-gather of 8") != nullptr);
    OK(ncclCommAbort(me.comm));
    return 0;
  });
}

TEST_F(FakeNccl, TwoRanksOnOneDeviceAreRefused) {
  run(2, [](uint32_t rank, const ncclUniqueId& id) {
    OK(cudaSetDevice(0));
    ncclComm_t comm = nullptr;
    EXPECT_OR_LINE(ncclCommInitRank(&comm, 2, id, static_cast<int>(rank)) == ncclInvalidUsage);
    return 0;
  });
}

TEST_F(FakeNccl, MemoryOfTheHostIsRefused) {
  run(1, [](uint32_t rank, const ncclUniqueId& id) {
    Rank me(rank, 1, id);
    std::vector<float> host(10);
    EXPECT_OR_LINE(ncclAllGather(host.data(), host.data(), 10, ncclFloat, me.comm, me.streams[0]) ==
                   ncclInvalidArgument);
    return 0;
  });
}

}  // namespace
}  // namespace elixir
