#include "schedule/ir/text_scope.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/ir/text_rules.h"

namespace steptwin {

NameId TextScope::intern(std::string_view text) {
  const auto [it, fresh] = names.try_emplace(std::string(text), static_cast<std::uint32_t>(schedule.names.size()));
  if (fresh) schedule.names.emplace_back(text);
  return NameId(it->second);
}

void declare_name(LineCursor& line, NameTable& table, const Token& token, std::string_view name, std::size_t index, const char* what) {
  if (table.try_emplace(std::string(name), static_cast<std::uint32_t>(index)).second || line.failed()) return;
  line.fail(token, "DUP-NAME", fmt::format("{} '{}' is declared twice", what, clipped(name)), "give one of them another name");
}

std::uint32_t known_name(LineCursor& line, const NameTable& table, const char* what) {
  const Token token = line.peek();
  const bool named = token.kind == Token::Kind::String || (token.kind == Token::Kind::Word && is_plain_name(token.text));
  if (!named) line.expected(fmt::format("the name of a {}", what).c_str());
  if (line.failed()) return NameId::kNone;
  const std::string_view name = line.take().text;
  const auto it = table.find(std::string(name));
  if (it != table.end()) return it->second;
  std::vector<std::string> known;
  for (const auto& entry : table) known.push_back(entry.first);
  std::sort(known.begin(), known.end());
  const std::string near = line.suggestion(name, known);
  line.fail(token, "UNKNOWN-NAME", fmt::format("there is no {} '{}'", what, clipped(name)),
            near.empty() ? fmt::format("declare the {} before it is used", what) : near);
  return NameId::kNone;
}

void unknown_axis(const TextScope& scope, LineCursor& line, const Token& token, std::string_view name) {
  std::vector<std::string> known;
  for (const Axis& axis : scope.schedule.mesh.axes) known.push_back(axis.name);
  line.fail(token, "UNKNOWN-NAME", fmt::format("the mesh has no axis '{}'", clipped(name)), line.suggestion(name, known));
}

}  // namespace steptwin
