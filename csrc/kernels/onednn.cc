// The int8 products by oneDNN, which drives AMX where the processor has it; everything else is the table of
// AVX-512 VNNI, so that the vectors are the same to the bit. Built with -DEMBEDKIT_WITH_ONEDNN=ON.
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>

#include "base/aligned.h"
#include "base/error.h"
#include "kernels/kernels.h"

namespace embedkit {
namespace {

using dnnl::memory;

constexpr size_t kPanel = 48;  // columns of a block of BA16a48b4a, a layout of oneDNN's for int8 weights
constexpr size_t kGroup = 64;  // of K in such a block, and in a tile of AMX
constexpr size_t kWide = 4;    // panels that are multiplied in one call while there are as many
constexpr size_t kRows = 48;
constexpr size_t kFewRows = 16;  // a tile of AMX
constexpr size_t kMostSums = kRows * kWide * kPanel;

/// Keeps oneDNN on the calling thread, which is one of a gang already.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// Not destroyed at exit, when other threads may still run; as the products below.
const dnnl::engine& engine() {
  static const auto& cpu = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::desc matrix(size_t rows, size_t columns, memory::data_type type, memory::format_tag tag) {
  return {{static_cast<memory::dim>(rows), static_cast<memory::dim>(columns)}, type, tag};
}

/// The products of `rows` rows of `k` bytes with `panels` panels.
class Product {
 public:
  Product(size_t rows, size_t k, size_t panels)
      : x_(matrix(rows, k, memory::data_type::u8, memory::format_tag::ab)),
        weights_(matrix(k, panels * kPanel, memory::data_type::s8, memory::format_tag::BA16a48b4a)),
        sums_(matrix(rows, panels * kPanel, memory::data_type::s32, memory::format_tag::ab)) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own serves one thread alone
    const dnnl::matmul::primitive_desc description(engine(), x_, weights_, sums_, attributes);
    scratchpad_ = description.scratchpad_desc();
    multiply_ = dnnl::matmul(description);
  }

  const memory::desc& weights() const { return weights_; }
  size_t scratchpad_bytes() const { return scratchpad_.get_size(); }

  void run(dnnl::stream& stream, uint8_t* x, uint8_t* weights, int32_t* sums, uint8_t* scratchpad) const {
    multiply_.execute(stream, {{DNNL_ARG_SRC, memory(x_, engine(), x)},
                               {DNNL_ARG_WEIGHTS, memory(weights_, engine(), weights)},
                               {DNNL_ARG_DST, memory(sums_, engine(), sums)},
                               {DNNL_ARG_SCRATCHPAD, memory(scratchpad_, engine(), scratchpad)}});
  }

 private:
  memory::desc x_, weights_, sums_, scratchpad_;
  dnnl::matmul multiply_;
};

/// Every size that the products of one K are cut into.
class Products {
 public:
  explicit Products(size_t k)
      : k(k),
        of_{{Product(kFewRows, k, 1), Product(kFewRows, k, kWide)},
            {Product(kRows, k, 1), Product(kRows, k, kWide)}} {
    for (const auto& wide : of_)
      for (const Product& product : wide)
        scratchpad_bytes = std::max(scratchpad_bytes, product.scratchpad_bytes());
  }

  const Product& of(bool many_rows, bool wide) const { return of_[many_rows][wide]; }

  const size_t k;
  size_t scratchpad_bytes = 0;

 private:
  Product of_[2][2];
};

const Products& products_for(size_t in) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<size_t, std::unique_ptr<Products>>;
  const size_t k = round_up(in, kGroup);
  const std::scoped_lock lock(mutex);
  std::unique_ptr<Products>& products = known[k];
  if (products == nullptr) products = std::make_unique<Products>(k);
  return *products;
}

/// What stands before the packed panels, in a cache line of its own.
struct Header {
  const Products* products;
};

size_t packed_int8_bytes(size_t out, size_t in) {
  return kCacheLine + checked_mul(round_up(out, kPanel), round_up(in, kGroup));
}

void pack_int8(const int8_t* weights, size_t out, size_t in, void* packed) try {
  const OneThread one_thread;
  const Products& products = products_for(in);
  const Header header{&products};
  std::memcpy(packed, &header, sizeof(header));
  auto* to = static_cast<uint8_t*>(packed) + kCacheLine;
  const memory::desc plain =
      matrix(products.k, kPanel, memory::data_type::s8, memory::format_tag::ba);  // as rows of outputs
  dnnl::stream stream(engine());
  AlignedBuffer<int8_t> panel(kPanel * products.k);
  for (size_t n0 = 0; n0 < out; n0 += kPanel, to += kPanel * products.k) {
    std::memset(panel.data(), 0, panel.size());
    for (size_t n = n0; n < std::min(out, n0 + kPanel); ++n)
      std::memcpy(panel.data() + (n - n0) * products.k, weights + n * in, in);
    memory from(plain, engine(), panel.data());
    memory into(products.of(false, false).weights(), engine(), to);
    dnnl::reorder(from, into).execute(stream, from, into);
    stream.wait();
  }
} catch (const dnnl::error& error) {
  throw InternalError(concat("oneDNN: ", error.what()));
}

/// Calls finish(row, rows, column, columns, sums) for every block of products.
template <class Finish>
void for_blocks(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                size_t panel_end, Finish&& finish) {
  thread_local dnnl::stream stream(engine());
  thread_local AlignedBuffer<uint8_t> tile, scratchpad;
  thread_local AlignedBuffer<int32_t> sums(kMostSums);
  const OneThread one_thread;
  Header header;
  std::memcpy(&header, linear.weights, sizeof(header));
  const Products& products = *header.products;
  const size_t k = products.k;
  // oneDNN takes what it only reads as a pointer to what it may write.
  auto* weights = const_cast<uint8_t*>(static_cast<const uint8_t*>(linear.weights)) + kCacheLine;
  tile.reserve(kRows * k);
  scratchpad.reserve(products.scratchpad_bytes);
  for (size_t row = 0; row < rows;) {
    const bool many = rows - row > 2 * kFewRows;
    const size_t height = std::min(many ? kRows : kFewRows, rows - row);
    // Rows past the last one keep what was there before: their sums are thrown away.
    for (size_t r = 0; r < height; ++r) std::memcpy(tile.data() + r * k, x.data + (row + r) * x.stride, k);
    for (size_t p = panel_begin; p < panel_end;) {
      const bool wide = panel_end - p >= kWide;
      const size_t panels = wide ? kWide : 1;
      products.of(many, wide)
          .run(stream, tile.data(), weights + p * kPanel * k, sums.data(), scratchpad.data());
      finish(row, height, p * kPanel, panels * kPanel, sums.data());
      p += panels;
    }
    row += height;
  }
}

/// x Wᵀ = scale_m (scale_n Σ q w) + lowest_m (scale_n Σ w), plus the bias, as avx512_vnni.cc rounds it.
__attribute__((target("avx512f"))) void scale_row(const int32_t* sums, size_t columns, float x_scale,
                                                  float x_lowest, const float* scale, const float* row_sums,
                                                  const float* bias, float* out) {
  for (size_t c = 0; c < columns; c += 16) {
    const __m512 start =
        _mm512_fmadd_ps(_mm512_set1_ps(x_lowest), _mm512_loadu_ps(row_sums + c), _mm512_loadu_ps(bias + c));
    const __m512 scaled =
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sums + c)), _mm512_set1_ps(x_scale));
    _mm512_storeu_ps(out + c, _mm512_fmadd_ps(scaled, _mm512_loadu_ps(scale + c), start));
  }
}

void linear_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, size_t panel_begin,
                 size_t panel_end, float* out, size_t ld_out) {
  for_blocks(x, rows, linear, panel_begin, panel_end,
             [&](size_t row, size_t height, size_t column, size_t columns, const int32_t* sums) {
               for (size_t r = row; r < row + height; ++r, sums += columns)
                 scale_row(sums, columns, x.scale[r], x.lowest[r], linear.scale + column,
                           linear.row_sums + column, linear.bias + column, out + r * ld_out + column);
             });
}

void products_int8(const QuantizedRows& x, size_t rows, const PackedLinear& linear, int32_t* out,
                   size_t ld_out) {
  for_blocks(x, rows, linear, 0, (linear.out_features + kPanel - 1) / kPanel,
             [&](size_t row, size_t height, size_t column, size_t columns, const int32_t* sums) {
               for (size_t r = row; r < row + height; ++r, sums += columns)
                 std::copy_n(sums, std::min(columns, linear.out_features - column),
                             out + r * ld_out + column);
             });
}

}  // namespace

const Kernels& onednn_kernels() {
  static const Kernels kernels = [] {
    Kernels table = kAvx512VnniKernels;
    table.isa = Isa::kOneDnn;
    table.quantized_group = kGroup;
    table.packed_int8_bytes = packed_int8_bytes;
    table.pack_int8 = pack_int8;
    table.linear_int8 = linear_int8;
    table.products_int8 = products_int8;
    return table;
  }();
  return kernels;
}

}  // namespace embedkit
