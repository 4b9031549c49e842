#include "python/bind.h"

namespace embedkit {
void bind_encoder(pybind11::module_&) {}
}  // namespace embedkit
