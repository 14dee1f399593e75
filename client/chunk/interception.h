#pragma once

namespace elixir {

// Registers nothing itself: links in the dispatcher fallback of interception.cpp, which must be
// there before the first operator on a chunk view.
void keep_interception();

}  // namespace elixir
