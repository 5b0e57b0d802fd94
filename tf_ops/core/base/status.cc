#include "core/base/status.h"

#include <algorithm>

namespace sok {

Status::Status(Code code, std::string_view form, std::initializer_list<ErrorField> fields)
    : code_(code) {
  std::string text;
  std::vector<Place> rules;
  while (!form.empty()) {
    const size_t open = std::min(form.find('{'), form.size());
    text += form.substr(0, open);
    form.remove_prefix(open);
    if (form.empty()) break;
    const size_t close = form.find('}');
    const std::string_view name =
        close == form.npos ? std::string_view() : form.substr(1, close - 1);
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const ErrorField& each) { return each.name() == name; });
    if (field == fields.end()) {
      text += form.front();
      form.remove_prefix(1);
      continue;
    }
    form.remove_prefix(close + 1);
    for (const std::string& value : field->values()) {
      if (&value != &field->values().front()) text += ", ";
      if (field->type() == ErrorField::Type::kRule) rules.push_back({text.size(), value.size()});
      text += value;
    }
  }
  content_ = Content::Of(std::move(text), std::move(rules));
}

std::string Status::Worded(const WordRule& word) const {
  if (content_ == nullptr) return message();
  const std::string& text = content_->text;
  std::string worded;
  size_t begin = 0;
  for (const Place& rule : content_->rules) {
    worded.append(text, begin, rule.begin - begin);
    worded += word(text.substr(rule.begin, rule.size));
    begin = rule.begin + rule.size;
  }
  return worded.append(text, begin);
}

Status Status::Within(std::string_view before, std::string_view after) const {
  std::string text(before);
  text.append(this->text()).append(after);
  std::vector<Place> rules;
  if (content_ != nullptr) rules = content_->rules;
  for (Place& rule : rules) rule.begin += before.size();
  Status status;
  status.code_ = code_;
  status.content_ = Content::Of(std::move(text), std::move(rules));
  return status;
}

}  // namespace sok
