#include "client/ranks/member.h"

#include <charconv>
#include <map>
#include <vector>

namespace elixir {
namespace {

constexpr size_t kMaxMemberBytes = 1024;

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    fields.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

bool parse(std::string_view text, uint32_t* value) {
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return failure == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string Member::name() const { return fmt::format("rank {} (pid {} on {})", rank, pid, host); }

std::string encode_member(const Member& member) {
  return fmt::format("{}\t{}\t{}\t{}", member.rank, member.pid, member.host, member.gpu_uuid);
}

Result<Member> decode_member(std::string_view text) {
  const std::vector<std::string_view> fields = fields_of(text.substr(0, kMaxMemberBytes));
  Member member;
  if (text.size() > kMaxMemberBytes || fields.size() != 4 || !parse(fields[0], &member.rank) ||
      !parse(fields[1], &member.pid)) {
    return error(Code::kProtocol,
                 "a rank's entry at the rendezvous is not a rank, pid, host and GPU ({} bytes, {} "
                 "fields): do all ranks run the same Elixir?",
                 text.size(), fields.size());
  }
  member.host = fields[2];
  member.gpu_uuid = fields[3];
  return member;
}

Status refuse_shared_gpus(std::span<const Member> members) {
  std::map<std::string_view, const Member*> first_on;
  for (const Member& member : members) {
    if (member.gpu_uuid.empty()) continue;
    const auto [place, first] = first_on.emplace(member.gpu_uuid, &member);
    if (first) continue;
    return error(Code::kInvalidArgument,
                 "{} and {} compute on one GPU, {}, and NCCL needs one a rank: start no more ranks "
                 "on a node than it has GPUs, or use --exchange host, which can share them",
                 place->second->name(), member.name(), member.gpu_uuid);
  }
  return Status();
}

}  // namespace elixir
