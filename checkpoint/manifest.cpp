#include "checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/compute_type_names.h"
#include "checkpoint/json_values.h"
#include "checkpoint/safetensors.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

// Every byte of the file is one of these or is hashed, so that a change of any is seen.
constexpr std::string_view kBefore = "{\"manifest\":";
constexpr std::string_view kBetween = ",\"xxh3\":\"";
constexpr std::string_view kBehind = "\"}\n";
constexpr size_t kHexDigits = 16;

constexpr std::string_view kFormatName = "elixir-checkpoint";
constexpr uint64_t kMaxCount = uint64_t{1} << 53;  // what other readers of JSON still have exactly
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 62;
constexpr uint32_t kMaxRanks = 1 << 20;
constexpr size_t kMaxGroups = 1 << 16;

std::string hex_of(uint64_t value) { return fmt::format("{:016x}", value); }

// As hex_of() writes it and not otherwise.
std::optional<uint64_t> parse_hex(std::string_view text) {
  uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (failure != std::errc() || hex_of(value) != text) return std::nullopt;
  return value;
}

std::string hash_of(std::string_view text) {
  return hex_of(xxh3_of(std::as_bytes(std::span(text))));
}

json encode_files(const std::vector<ManifestFile>& files) {
  json list = json::array();
  for (const ManifestFile& file : files) {
    json pieces = json::array();
    for (const Piece& piece : file.pieces) pieces.push_back({piece.bytes, hex_of(piece.xxh3)});
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"pieces", std::move(pieces)}});
  }
  return list;
}

json encode_groups(const std::vector<ManifestGroup>& groups) {
  json list = json::array();
  for (const ManifestGroup& group : groups) {
    list.push_back(
        {{"lr", group.lr}, {"weight_decay", group.weight_decay}, {"hyper", group.hyper}});
  }
  return list;
}

std::vector<Piece> decode_pieces(const json& list, JsonReader& reader) {
  std::vector<Piece> pieces;
  for (const json& piece : list) {
    if (!piece.is_array() || piece.size() != 2) {
      reader.fail("'pieces' are not pairs of bytes and a hash");
      break;
    }
    const uint64_t bytes = reader.whole(piece[0], "pieces", 1, kMaxPieceBytes);
    const auto hash = parse_hex(reader.text(piece[1], "pieces", kHexDigits));
    if (!hash.has_value()) reader.fail("a hash of 'pieces' is not 16 digits");
    if (!reader.ok()) break;
    pieces.push_back({bytes, *hash});
  }
  return pieces;
}

ManifestFile decode_file(const json& value, JsonReader& reader) {
  ManifestFile file;
  // Two parts of 255 bytes and what is between.
  file.name = reader.text(reader.field(value, "name"), "name", 511);
  if (reader.ok() && (!is_file_name(file.name) || file.name == kManifestName)) {
    reader.fail(fmt::format("'{:.100}' cannot be the name of a file of a checkpoint", file.name));
  }
  file.bytes = reader.whole(reader.field(value, "bytes"), "bytes", 0, kMaxFileBytes);
  file.pieces = decode_pieces(reader.list(value, "pieces"), reader);
  uint64_t bytes = 0;  // that of all files cannot overflow: no manifest holds 2^38 pieces
  for (const Piece& piece : file.pieces) bytes += piece.bytes;
  if (reader.ok() && bytes != file.bytes) {
    reader.fail(
        fmt::format("'{}' would have {} bytes, its pieces {}", file.name, file.bytes, bytes));
  }
  return file;
}

std::vector<ManifestFile> decode_files(const json& list, JsonReader& reader) {
  std::vector<ManifestFile> files;
  std::set<std::string> names;
  if (list.size() > kMaxFiles) reader.fail(fmt::format("more than {} files", kMaxFiles));
  for (const json& value : list) {
    ManifestFile file = decode_file(value, reader);
    if (!reader.ok()) break;
    if (!names.insert(file.name).second) {
      reader.fail(fmt::format("the file '{}' is listed twice", file.name));
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<ManifestGroup> decode_groups(const json& list, UpdateRule rule, JsonReader& reader) {
  std::vector<ManifestGroup> groups;
  if (list.size() > kMaxGroups) reader.fail(fmt::format("more than {} groups", kMaxGroups));
  for (const json& value : list) {
    ManifestGroup group;
    group.lr = reader.real(reader.field(value, "lr"), "lr");
    group.weight_decay = reader.real(reader.field(value, "weight_decay"), "weight_decay");
    const json& hyper = reader.list(value, "hyper");
    if (hyper.size() != traits_of(rule).n_hyper) {
      reader.fail(fmt::format("'hyper' has {} values, {} has {}", hyper.size(),
                              traits_of(rule).name, traits_of(rule).n_hyper));
    }
    if (!reader.ok()) break;
    for (const json& number : hyper) group.hyper.push_back(reader.real(number, "hyper"));
    groups.push_back(std::move(group));
  }
  return groups;
}

template <typename Count>
std::map<std::string, Count> decode_counts(const json& manifest, const char* name, uint64_t most,
                                           JsonReader& reader) {
  std::map<std::string, Count> counts;
  for (const auto& [parameter, value] : reader.object(manifest, name).items()) {
    if (parameter.size() > kMaxNameBytes)
      reader.fail(fmt::format("a name of '{}' is too long", name));
    if (!reader.ok()) break;
    counts[parameter] = static_cast<Count>(reader.whole(value, name, 0, most));
  }
  return counts;
}

UpdateRule decode_rule(const std::string& name, JsonReader& reader) {
  for (uint32_t rule = 0; rule < std::size(kUpdateRules); ++rule) {
    if (name == kUpdateRules[rule].name) return static_cast<UpdateRule>(rule);
  }
  reader.fail(fmt::format("the rule '{:.20}' is not known", name));
  return UpdateRule::kAdamW;
}

LeftOut decode_left_out(const json& value, JsonReader& reader) {
  LeftOut left_out;
  left_out.parameters =
      reader.whole(reader.field(value, "parameters"), "left_out.parameters", 0, kMaxTensors);
  left_out.bytes = reader.whole(reader.field(value, "bytes"), "left_out.bytes", 0, kMaxFileBytes);
  const auto hash =
      parse_hex(reader.text(reader.field(value, "hash"), "left_out.hash", kHexDigits));
  if (!hash.has_value()) reader.fail("'left_out.hash' is not 16 digits");
  left_out.hash = hash.value_or(0);
  return left_out;
}

Health decode_health(const json& value, JsonReader& reader) {
  Health health;
  health.not_finite =
      reader.whole(reader.field(value, "not_finite"), "health.not_finite", 0, kMaxFileBytes);
  health.finite_step = reader.boolean(reader.field(value, "finite_step"), "health.finite_step");
  return health;
}

Manifest decode_object(const json& value, JsonReader& reader) {
  Manifest manifest;
  manifest.step = reader.whole(reader.field(value, "step"), "step", 0, kMaxCount);
  manifest.updates = reader.whole(reader.field(value, "updates"), "updates", 0, kMaxCount);
  const Result<ComputeType> type =
      parse_name(kComputeTypeNames, reader.text(reader.field(value, "type"), "type", 20));
  if (type.ok()) manifest.type = *type;
  if (!type.ok()) reader.fail("'type': " + type.status().message());
  manifest.rule = decode_rule(reader.text(reader.field(value, "rule"), "rule", 20), reader);
  manifest.optimizer_states =
      reader.boolean(reader.field(value, "optimizer_states"), "optimizer_states");
  manifest.ranks =
      static_cast<uint32_t>(reader.whole(reader.field(value, "ranks"), "ranks", 1, kMaxRanks));
  manifest.groups = decode_groups(reader.list(value, "groups"), manifest.rule, reader);
  const json& scale = reader.object(value, "loss_scale");
  if (!reader.ok()) return manifest;
  manifest.loss_scale.value = reader.real(reader.field(scale, "value"), "loss_scale.value");
  if (!(manifest.loss_scale.value > 0)) reader.fail("'loss_scale.value' is not above 0");
  manifest.loss_scale.good_steps = static_cast<uint32_t>(
      reader.whole(reader.field(scale, "good_steps"), "loss_scale.good_steps", 0, UINT32_MAX));
  manifest.updates_of = decode_counts<uint64_t>(value, "updates_of", kMaxCount, reader);
  const size_t last_group = std::max<size_t>(manifest.groups.size(), 1) - 1;
  manifest.group_of = decode_counts<uint32_t>(value, "group_of", last_group, reader);
  if (value.contains("left_out")) {
    manifest.left_out = decode_left_out(reader.object(value, "left_out"), reader);
  }
  if (value.contains("states_alone")) {
    manifest.states_alone = reader.boolean(value["states_alone"], "states_alone");
  }
  if (reader.ok() && manifest.states_alone && !(manifest.left_out && manifest.optimizer_states)) {
    reader.fail("'states_alone' is true, and there is no 'left_out', or there are no states");
  }
  if (value.contains("health")) {
    manifest.health = decode_health(reader.object(value, "health"), reader);
  }
  manifest.program = reader.text(reader.field(value, "program"), "program", kMaxProgramBytes);
  if (reader.ok()) manifest.files = decode_files(reader.list(value, "files"), reader);
  return manifest;
}

Status check_format(const json& value) {
  JsonReader reader;
  const std::string& format = reader.text(reader.field(value, "format"), "format", 100);
  if (!reader.ok() || format != kFormatName) {
    return error(Code::kBadInput, "not a checkpoint's manifest: its format is not '{}'",
                 kFormatName);
  }
  const uint64_t version = reader.whole(reader.field(value, "version"), "version", 0, UINT64_MAX);
  if (reader.ok() && version != kFormatVersion) {
    return error(Code::kBadInput,
                 "a checkpoint of format version {}; this Elixir reads version {}: read it with "
                 "the one that wrote it",
                 version, kFormatVersion);
  }
  return reader.status();
}

// The inner object's bytes, once they are those that were hashed.
Result<std::string_view> unwrap(std::string_view text) {
  const size_t behind = kBetween.size() + kHexDigits + kBehind.size();
  if (text.size() > kMaxManifestBytes) {
    return error(Code::kBadInput, "{} bytes are too many: the limit for a manifest is {}",
                 text.size(), kMaxManifestBytes);
  }
  if (text.size() < kBefore.size() + behind || !text.starts_with(kBefore) ||
      !text.ends_with(kBehind) || !text.substr(text.size() - behind).starts_with(kBetween)) {
    return error(Code::kBadInput,
                 "not a checkpoint's manifest, or damaged: it is not an object with 'manifest' and "
                 "'xxh3' as Elixir writes it");
  }
  const std::string_view inner = text.substr(kBefore.size(), text.size() - kBefore.size() - behind);
  const std::string_view hash = text.substr(text.size() - kBehind.size() - kHexDigits, kHexDigits);
  if (hash != hash_of(inner)) {
    return error(Code::kBadInput, "damaged: its hash is not that of what it says");
  }
  return inner;
}

bool is_name_part(std::string_view part) {
  if (part.empty() || part.size() > 255 || part == "." || part == "..") return false;
  return std::all_of(part.begin(), part.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace

Status check_size(const ManifestFile& listed, uint64_t bytes) {
  if (bytes == listed.bytes) return Status();
  return error(Code::kBadInput, "it has {} bytes, where {} says {}", bytes, kManifestName,
               listed.bytes);
}

uint64_t xxh3_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

bool is_file_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_name_part(name);
  return is_name_part(name.substr(0, slash)) && is_name_part(name.substr(slash + 1));
}

bool is_own_file(std::string_view name) {
  return name == kManifestName || name == kIndexName || name == "optimizer" ||
         name.starts_with("optimizer/") || name.ends_with(".safetensors");
}

std::string encode_manifest(const Manifest& manifest) {
  json value = {
      {"format", kFormatName},
      {"version", kFormatVersion},
      {"step", manifest.step},
      {"updates", manifest.updates},
      {"type", compute_type_name(manifest.type)},
      {"rule", traits_of(manifest.rule).name},
      {"optimizer_states", manifest.optimizer_states},
      {"ranks", manifest.ranks},
      {"groups", encode_groups(manifest.groups)},
      {"loss_scale",
       {{"value", manifest.loss_scale.value}, {"good_steps", manifest.loss_scale.good_steps}}},
      {"updates_of", manifest.updates_of},
      {"group_of", manifest.group_of},
      {"program", manifest.program},
      {"files", encode_files(manifest.files)},
  };
  if (manifest.left_out) {
    value["left_out"] = {{"parameters", manifest.left_out->parameters},
                         {"bytes", manifest.left_out->bytes},
                         {"hash", hex_of(manifest.left_out->hash)}};
  }
  if (manifest.states_alone) value["states_alone"] = true;
  if (manifest.health) {
    value["health"] = {{"not_finite", manifest.health->not_finite},
                       {"finite_step", manifest.health->finite_step}};
  }
  const std::string inner = dump_json(value);
  return fmt::format("{}{}{}{}{}", kBefore, inner, kBetween, hash_of(inner), kBehind);
}

Result<Manifest> decode_manifest(std::string_view text) {
  const Result<std::string_view> inner = unwrap(text);
  if (!inner.ok()) return inner.status();
  const Result<json> value = parse_json(*inner);
  if (!value.ok()) return value.status();
  ELIXIR_RETURN_IF_ERROR(check_format(*value));
  JsonReader reader;
  Manifest manifest = decode_object(*value, reader);
  if (!reader.ok()) return reader.status();
  return manifest;
}

}  // namespace elixir::checkpoints
