#pragma once

namespace elixir {

// From here on LibTorch's operators that this thread calls run on it alone, without threads of
// their own: for threads that share out work among themselves. Other threads are as before
// (at::set_num_threads would change it for all).
void compute_alone();

}  // namespace elixir
