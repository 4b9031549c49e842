// embedkit._core: argument checks and conversions only; the layers below do the work.
#include <pybind11/pybind11.h>

#include "base/error.h"
#include "python/bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The compiled core of embedkit; use embedkit.Encoder.";
  embedkit::bind_platform(m);
  embedkit::bind_text(m);
  embedkit::bind_encoder(m);
  embedkit::bind_token_window(m);
  embedkit::bind_words(m);
  embedkit::bind_kernels(m);
}
