// The bindings of the pipeline's ends, for encode stages in Python: embedkit._core.TokenWindow and
// scatter_rows.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "pipeline/encode.h"
#include "pipeline/scatter_rows.h"
#include "python/bind.h"
#include "python/gil.h"
#include "python/interrupt.h"
#include "python/texts.h"

namespace py = pybind11;

namespace embedkit {

namespace {

/// Stops a tokenization that runs on another thread, which no Ctrl-C reaches.
class Cancel {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> cancelled_{false};
};

std::unique_ptr<TokenWindow> run(const TokenSource& source, const EncodeOptions& options,
                                 const std::shared_ptr<Cancel>& cancel) {
  auto window = std::make_unique<TokenWindow>();
  const auto tokenized = [&](StopToken& stop) { tokenize(source, options, stop, *window); };
  if (cancel) {
    // A flag may be looked at always; asking the interpreter takes the GIL.
    StopToken stop([&] { return cancel->cancelled(); }, std::chrono::milliseconds(0));
    const GilRelease release;
    tokenized(stop);
  } else {
    heard(tokenized);
  }
  return window;
}

/// A read-only array of `get` of each sequence; made once, since every batch needs it.
template <typename Get>
py::object array_of(const py::object& window, const char* name, Get&& get) {
  const py::dict kept = window.attr("__dict__");
  if (!kept.contains(name)) {
    const std::vector<Sequence>& sequences = window.cast<const TokenWindow&>().sequences();
    py::array_t<int32_t> array(static_cast<py::ssize_t>(sequences.size()));
    int32_t* out = array.mutable_data();
    for (const Sequence& s : sequences) *out++ = static_cast<int32_t>(get(s));
    array.attr("setflags")(py::arg("write") = false);
    kept[name] = array;
  }
  return kept[name];
}

/// The memory of an array that is written to; it is never copied.
std::span<int32_t> writable(const py::array& array, const char* name, py::ssize_t dimensions = 1) {
  if (!py::isinstance<py::array_t<int32_t>>(array) || array.ndim() != dimensions ||
      (array.flags() & py::array::c_style) == 0 || !array.writeable())
    throw py::type_error(concat(name, " must be a writable, contiguous int32 array of ", dimensions,
                                dimensions == 1 ? " dimension" : " dimensions"));
  return {static_cast<int32_t*>(const_cast<void*>(array.data())), static_cast<size_t>(array.size())};
}

TileTarget tile_target(const py::array& array) {
  const std::span<int32_t> values = writable(array, "tiles", 2);
  const auto columns = static_cast<size_t>(array.shape(1));
  require(columns > kTileHeader, "tiles has ", columns, " columns; it must have more than ", kTileHeader);
  return {values, columns - kTileHeader};
}

size_t pack_into(const TokenWindow& window, const py::array_t<int64_t, py::array::c_style>& order,
                 const py::array& ids, const py::array& cu_seqlens, const std::optional<py::array>& positions,
                 const std::optional<py::array>& tiles, bool skips, int32_t padding_idx, size_t vocab_size) {
  if (order.ndim() != 1) throw py::value_error("order must have one dimension");
  PackTarget target{.ids = writable(ids, "ids"), .cu_seqlens = writable(cu_seqlens, "cu_seqlens")};
  target.skips = skips;
  if (positions) target.positions = writable(*positions, "positions");
  if (tiles) target.tiles = tile_target(*tiles);
  const std::span<const int64_t> rows(order.data(), static_cast<size_t>(order.size()));
  const GilRelease release;
  return pack(window, rows, padding_idx, vocab_size, target);
}

void scatter(const py::array& out, const py::array_t<int64_t, py::array::c_style>& rows,
             const py::array& values, int threads) {
  for (const py::array* array : {&out, &values})
    if (array->ndim() != 2 || (array->flags() & py::array::c_style) == 0 || array->dtype().kind() == 'O')
      throw py::value_error("out and values must be contiguous arrays of numbers, of two dimensions");
  if (rows.ndim() != 1 || !out.writeable() || !out.dtype().equal(values.dtype()) ||
      out.shape(1) != values.shape(1))
    throw py::value_error(
        "out must be writable, with the type and the columns of values, and rows have one dimension");
  const auto size = [](const py::array& array) { return static_cast<size_t>(array.nbytes()); };
  const std::span<const std::byte> from(static_cast<const std::byte*>(values.data()), size(values));
  const std::span<std::byte> to(static_cast<std::byte*>(const_cast<void*>(out.data())), size(out));
  const auto bytes = static_cast<size_t>(values.shape(1) * values.itemsize());
  const std::span<const int64_t> places(rows.data(), static_cast<size_t>(rows.size()));
  const GilRelease release;
  scatter_rows(from, places, bytes, to, threads);
}

}  // namespace

void bind_token_window(py::module_& m) {
  py::class_<Cancel, std::shared_ptr<Cancel>>(m, "Cancel").def(py::init<>()).def("cancel", &Cancel::cancel);
  py::class_<TokenWindow>(m, "TokenWindow", py::dynamic_attr())
      .def_property_readonly("texts", &TokenWindow::texts)
      .def_property_readonly("tokens", &TokenWindow::tokens)
      .def_property_readonly("truncated", &TokenWindow::truncated)
      .def_property_readonly("unknown", &TokenWindow::unknown)
      .def_property_readonly("lengths",
                             [](const py::object& window) {
                               return array_of(window, "lengths", [](const Sequence& s) { return s.length; });
                             })
      .def_property_readonly("text_of_sequence",
                             [](const py::object& window) {
                               return array_of(window, "text_of_sequence",
                                               [](const Sequence& s) { return s.text; });
                             })
      .def_property_readonly("pool_skip",
                             [](const py::object& window) {
                               return array_of(window, "pool_skip",
                                               [](const Sequence& s) { return s.pool_skip; });
                             })
      .def("pack", &pack_into, py::arg("order"), py::arg("ids"), py::arg("cu_seqlens"),
           py::arg("positions") = py::none(), py::arg("tiles") = py::none(), py::kw_only(),
           py::arg("skips") = false, py::arg("padding_idx") = -1, py::arg("vocab_size"));
  m.def(
      "tokenize_window",
      [](const py::list& texts, const Tokenizer& tokenizer, const EncodeOptions& options,
         const std::shared_ptr<Cancel>& cancel) {
        const Texts views(texts);
        return run(TextSource(tokenizer, views.views()), options, cancel);
      },
      py::arg("texts"), py::arg("tokenizer"), py::arg("options"), py::arg("cancel") = py::none());
  m.def(
      "tokenize_window_ids",
      [](const std::vector<std::vector<int32_t>>& ids, const EncodeOptions& options,
         const std::shared_ptr<Cancel>& cancel) { return run(IdSource(ids), options, cancel); },
      py::arg("ids"), py::arg("options"), py::arg("cancel") = py::none());
  m.def("scatter_rows", &scatter, py::arg("out"), py::arg("rows"), py::arg("values"), py::arg("threads"));
}

}  // namespace embedkit
