#include "cli/training_text.h"

#include "schedule/base/data_dir.h"
#include "schedule/base/error.h"
#include "schedule/json/json_reader.h"

namespace steptwin {

namespace {

constexpr const char* kDefaultText = "/scenarios/text/rehearsal.txt";

}  // namespace

std::vector<std::uint8_t> training_text(const Options& options) {
  const bool given = options.given("data");
  try {
    const std::string text = read_text_file(given ? options.text("data") : data_dir() + kDefaultText);
    return {text.begin(), text.end()};
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(error.kind(), std::string("training text: ") + error.what(),
                           given ? "--data takes any file, read as bytes; without it the text that ships with steptwin is used"
                                 : "this is the text that ships with steptwin; --data FILE names another");
  }
}

}  // namespace steptwin
