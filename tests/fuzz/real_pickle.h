#pragma once

// The pickle of an optimizer's state_dict, put together from the parts that torch writes.

#include <string>

namespace elixir::fuzz {

using namespace std::string_literals;

// {'state': {0: {'step': tensor(5.), 'exp_avg': a tensor of [2, 3]}}, 'betas': (0.9, 0.999), 'lr':
// 1} as torch 2.11 writes it.
inline const std::string kPickledStorage =
    "((X\x07\0\0\0storageq\x05"s
    "ctorch\nFloatStorage\nq\x06X\x01\0\0\0"s;
inline const std::string kPickledRebuild = "ctorch._utils\n_rebuild_tensor_v2\nq\x04"s;
inline const std::string kPickledHooks =
    "\x89"
    "ccollections\nOrderedDict\nq\x08)Rq\x09tq\x0aRq\x0b"s;

inline std::string real_pickle() {
  return "\x80\x02}q\0(X\x05\0\0\0stateq\x01}q\x02K\0}q\x03(X\x04\0\0\0stepq\x0c"s +
         kPickledRebuild + kPickledStorage + "0q\x07X\x03\0\0\0cpuq\x0dK\x01tq\x0eQK\0))"s +
         kPickledHooks +
         "X\x07\0\0\0"
         "exp_avgq\x0f"s +
         kPickledRebuild + kPickledStorage +
         "1q\x10X\x03\0\0\0cpuq\x11K\x06tq\x12QK\0K\x02K\x03\x86q\x13K\x03K\x01\x86q\x14"s +
         kPickledHooks +
         "usX\x05\0\0\0"
         "betasq\x15G\x3f\xec\xcc\xcc\xcc\xcc\xcc\xcdG\x3f\xef\xf7\xce\xd9\x16\x87\x2b"s
         "\x86q\x16X\x02\0\0\0lrq\x17K\x01u."s;
}

}  // namespace elixir::fuzz
