#include "schedule/orders/orders.h"

namespace steptwin {

std::string write_csv(const ActionGrid& grid) {
  std::string text;
  for (const ActionList& list : grid) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(list[i]);
    }
    text += "\r\n";
  }
  return text;
}

}  // namespace steptwin
