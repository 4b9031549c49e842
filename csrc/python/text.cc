#include "python/bind.h"

namespace embedkit {
void bind_text(pybind11::module_&) {}
}  // namespace embedkit
