#pragma once

namespace elixir {

// From here on, LibTorch's operators that this thread calls run on it alone, without further
// threads. It is for threads that divide work among themselves. Other threads keep their setting
// (at::set_num_threads would change it for all).
void compute_alone();

}  // namespace elixir
