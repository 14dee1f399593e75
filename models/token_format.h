#pragma once

// How the tokens of a binary file are stored.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/enum_names.h"
#include "base/status.h"

namespace elixir {

// Little-endian integers.
enum class TokenType : uint8_t { kUint8, kUint16, kUint32, kUint64, kInt8, kInt16, kInt32, kInt64 };

// The types that a bare file may have (--tokens-dtype), with their names in Elixir's header.
inline constexpr EnumName<TokenType> kTokenTypeNames[] = {
    {"uint16", TokenType::kUint16}, {"uint32", TokenType::kUint32}, {"int32", TokenType::kInt32}};

uint64_t bytes_of(TokenType type);

struct TokenFormat {
  TokenType type = TokenType::kUint16;
  uint64_t offset = 0;  // bytes before the first token
  uint64_t tokens = 0;
  uint64_t vocabulary = 0;  // the vocabulary of the tokens; 0: the file does not say
};

// The longest header of a known format.
inline constexpr size_t kTokenHeaderBytes = 65536;

// Reads the header of a file. `head` holds the file's first bytes (kTokenHeaderBytes, or all if it
// is shorter); `file_bytes` is its size. Known formats are:
//
// * Elixir's own, from scripts/tokenize_text.py: 64 bytes with "ELXTOKEN", uint32 version 1,
//   uint32 64, the type's name in 16 bytes, uint64 vocabulary, uint64 tokens, zeros;
// * NumPy's .npy (format versions 1 to 3): one-dimensional arrays of integers;
// * llm.c's: 256 int32; the first three are 20240520, 1 and the number of uint16 tokens,
//   or 20240801, 7 and the number of uint32 tokens.
//
// Empty: the file has none of these formats. kBadInput, with cause and remedy but without the
// file's name: the header is damaged, the file is shorter or longer than its header says, or the
// type is another one.
Result<std::optional<TokenFormat>> read_token_header(std::span<const std::byte> head,
                                                     uint64_t file_bytes);

// The format of a file that holds only tokens. kBadInput: its size is no multiple of the type's
// size.
Result<TokenFormat> bare_tokens(TokenType type, uint64_t file_bytes);

}  // namespace elixir
