#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace fake_cuda {

struct Stream;
struct Work;

// Notes which work read and wrote each byte last, and whether later work is ordered after it.
//
// It knows the accesses of copies, fills, Elixir's kernels, matrix products, and works of other
// fakes, but not those of torch's own kernels. All functions REQUIRE the runtime's mutex.

// Notes the accesses of a work that has its place in the stream's order. Reports each access that
// is not ordered after an earlier one: two works on the same bytes, one of which writes.
void check_accesses(const Stream& stream, const Work& work);

// The memory has a new owner from now on, who is ordered after the last one by other means.
void forget_accesses(uintptr_t begin, size_t bytes);

uint64_t races_found();
nlohmann::ordered_json races_json();  // one object for each pair of works and streams

}  // namespace fake_cuda
