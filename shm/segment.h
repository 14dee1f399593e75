#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::shm {

// Gives a memfd the interface of a mappable object of Boost.Interprocess.
class MemFd {
 public:
  explicit MemFd(UniqueFd fd) : fd_(std::move(fd)) {}
  int get() const { return fd_.get(); }
  boost::interprocess::mapping_handle_t get_mapping_handle() const {
    return boost::interprocess::ipcdetail::mapping_handle_from_file_handle(fd_.get());
  }

 private:
  UniqueFd fd_;
};

enum class Access { kReadWrite, kReadOnly };

// A mapped memfd: the bytes, and the descriptor to pass on. Not copyable. The memory is freed when
// the last process has unmapped and closed it, also if SIGKILL ends that process.
// Note: docs/design/elixir.md, "sealed memory".
class Segment {
 public:
  // Creates a memfd of `bytes` zeros, maps it read-write and calls `before_reserve(address,
  // bytes)`, which may set a NUMA policy. Then it reserves every page and seals the size. So
  // missing memory is an error here, never a SIGBUS later. Uses 2 MiB pages if the system has
  // enough free ones, else asks for transparent ones.
  static Result<Segment> create(const std::string& name, uint64_t bytes,
                                const std::function<void(void*, uint64_t)>& before_reserve = {});

  // create() in two steps, for large segments that several threads fill. The segment has its
  // address, its policy and its seals, but no page yet. REQUIRES: memory is used only after fill().
  static Result<Segment> create_unfilled(
      const std::string& name, uint64_t bytes,
      const std::function<void(void*, uint64_t)>& before_reserve = {});
  // create_unfilled() for memory that may never be used. It takes no huge pages, because a mapping
  // takes them from the system's pool even if they are never used.
  static Result<Segment> create_empty(
      const std::string& name, uint64_t bytes,
      const std::function<void(void*, uint64_t)>& before_reserve = {});
  // Reserves the pages of [offset, offset + bytes); `offset` is a multiple of kFillAlignBytes. Any
  // thread may call it; several threads may fill different ranges at the same time. Error:
  // kResourceExhausted.
  Status fill(uint64_t offset, uint64_t bytes) const;
  static constexpr uint64_t kFillAlignBytes = 2ull << 20;  // the largest page

  // Maps a descriptor that another process created. Rejects one that is smaller than `bytes` or is
  // not sealed against shrinking, because its owner could make every access a SIGBUS.
  static Result<Segment> map(UniqueFd fd, uint64_t bytes, Access access);

  Segment(Segment&&) noexcept = default;
  Segment& operator=(Segment&&) noexcept = default;
  ~Segment();

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  uint64_t bytes() const { return region_.get_size(); }
  int fd() const { return memfd_.get(); }

  // A descriptor to pass on. It has the same memory and cannot be mapped for writing. (A process of
  // the same user can open it anew for writing: this guards against mistakes, not against malice.)
  Result<UniqueFd> read_only_fd() const;

  // From here on no process can map the memory for writing, write() to it or punch holes into it,
  // through any descriptor, and it takes no more seals. Existing mappings keep the right to write,
  // this one included. kUnavailable: the kernel does not have this seal (before 5.1).
  Status close_to_new_writers();

  // From here on this process only reads the mapping: a stray write is a SIGSEGV.
  Status protect();

  // For a trainer that may fork: from here on its children get neither the mapping nor the
  // descriptor. So the memory is free when the trainer has ended, whatever its children do. This
  // also closes fd(). A child that reads or writes there gets a SIGSEGV.
  void keep_from_children();

  // The page size in use: 2 MiB where huge pages were obtained, else the base page.
  uint64_t page_bytes() const;

 private:
  static Result<Segment> create_filled(unsigned page_flags, const std::string& name, uint64_t bytes,
                                       const std::function<void(void*, uint64_t)>& before_reserve);
  static Result<Segment> create_with(unsigned page_flags, const std::string& name, uint64_t bytes,
                                     const std::function<void(void*, uint64_t)>& before_reserve);

  Segment(MemFd memfd, boost::interprocess::mapped_region region)
      : memfd_(std::move(memfd)), region_(std::move(region)) {}

  MemFd memfd_;
  boost::interprocess::mapped_region region_;
  std::optional<uint32_t> kept_from_forks_;  // forks() at keep_from_children()
};

}  // namespace elixir::shm
