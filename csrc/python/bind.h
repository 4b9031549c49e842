#pragma once

#include <pybind11/pybind11.h>

namespace embedkit {

void bind_platform(pybind11::module_& m);
void bind_text(pybind11::module_& m);
void bind_encoder(pybind11::module_& m);
void bind_token_window(pybind11::module_& m);
void bind_words(pybind11::module_& m);
void bind_kernels(pybind11::module_& m);

}  // namespace embedkit
