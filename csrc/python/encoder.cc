#include "encoder/encoder.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "pipeline/encode.h"
#include "python/bind.h"
#include "python/gil.h"
#include "python/interrupt.h"
#include "python/options.h"
#include "python/texts.h"

namespace py = pybind11;

namespace embedkit {
namespace {

const Names<Activation> kActivations = {
    {"identity", Activation::kIdentity}, {"gelu", Activation::kGelu}, {"gelu_new", Activation::kGeluTanh},
    {"relu", Activation::kRelu},         {"tanh", Activation::kTanh}, {"sigmoid", Activation::kSigmoid},
    {"silu", Activation::kSilu}};
const Names<Precision> kPrecisions = {
    {"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"int8", Precision::kInt8}};
const Names<Gate> kGates = {
    {"none", Gate::kNone}, {"first", Gate::kFirstActivated}, {"second", Gate::kSecondActivated}};
const Names<NormPlace> kNormPlaces = {
    {"post", NormPlace::kPost}, {"pre", NormPlace::kPre}, {"around", NormPlace::kAround}};
const Names<NormKind> kNormKinds = {
    {"layer", NormKind::kLayerNorm}, {"rms", NormKind::kRms}, {"rms_plus_one", NormKind::kRmsPlusOne}};
const Names<PoolingMode> kPoolingModes = {{"cls", PoolingMode::kCls},
                                          {"lasttoken", PoolingMode::kLastToken},
                                          {"max", PoolingMode::kMax},
                                          {"mean", PoolingMode::kMean},
                                          {"mean_sqrt_len", PoolingMode::kMeanSqrtLen},
                                          {"weightedmean", PoolingMode::kWeightedMean}};

/// Refers to the array's memory; the reference is dropped with the GIL held, on whatever thread.
Tensor tensor_of(const std::string& name, const py::handle& value) {
  const auto array = py::reinterpret_borrow<py::object>(value);
  if (!py::isinstance<py::array>(array))
    throw py::type_error(concat("tensor '", name, "' is not a numpy array"));
  const auto numpy = py::reinterpret_borrow<py::array>(array);
  Tensor tensor;
  if (py::isinstance<py::array_t<float>>(numpy)) {
    tensor.type = Tensor::Type::kFloat32;
  } else if (py::isinstance<py::array_t<int8_t>>(numpy)) {
    tensor.type = Tensor::Type::kInt8;
  } else if (py::isinstance<py::array_t<int32_t>>(numpy)) {
    tensor.type = Tensor::Type::kInt32;
  } else if (py::isinstance<py::array_t<uint16_t>>(numpy)) {
    tensor.type = Tensor::Type::kBfloat16;  // numpy has none: their bits
  } else if (numpy.dtype().equal(py::dtype("float16"))) {
    tensor.type = Tensor::Type::kFloat16;
  } else {
    throw py::type_error(concat("tensor '", name, "' is ", std::string(py::str(numpy.dtype())),
                                ", not float32, float16, int8, int32, or uint16 (the bits of bfloat16)"));
  }
  if ((numpy.flags() & py::array::c_style) == 0)
    throw py::value_error(concat("tensor '", name, "' is not C-contiguous"));
  for (py::ssize_t i = 0; i < numpy.ndim(); ++i) tensor.shape.push_back(static_cast<size_t>(numpy.shape(i)));
  tensor.data = numpy.data();
  tensor.owner = std::shared_ptr<const void>(numpy.inc_ref().ptr(), [](const void* object) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(const_cast<void*>(object)));
  });
  return tensor;
}

/// A tensor of a head module; None for none.
Field<HeadModule> tensor_field(const char* name, Tensor HeadModule::* member) {
  return {name, [=](HeadModule& to, const py::object& value) {
            to.*member = value.is_none() ? Tensor{} : tensor_of(concat("head ", name), value);
          }};
}

void check_module(const HeadModule& module) {
  if (module.type == HeadModule::Type::kNormalize) {
    require(module.weight.data == nullptr && module.bias.data == nullptr,
            "a normalize module has no weights");
    return;
  }
  require(module.weight.data != nullptr, "a dense module or a norm lacks its weight");
  require(module.weight.type == Tensor::Type::kFloat32, "a head weight is not float32");
  require(module.bias.data == nullptr ||
              (module.bias.type == Tensor::Type::kFloat32 && module.weight.shape.size() == 2 &&
               module.bias.shape == std::vector<size_t>{module.weight.shape[0]}),
          "a head bias does not fit its weight");
}

std::unique_ptr<Encoder> make_encoder(EncoderConfig config, const py::dict& tensor_dict,
                                      const std::vector<std::string>& pooling, std::vector<HeadModule> head,
                                      const std::string& precision) {
  if (config.embedding_size == config.hidden_size) config.embedding_size = 0;
  config.precision = choose(precision, "precision", kPrecisions);
  Tensors tensors;
  for (const auto& [key, value] : tensor_dict) {
    const auto name = key.cast<std::string>();
    tensors.emplace(name, tensor_of(name, value));
  }
  std::vector<PoolingMode> modes;
  for (const std::string& mode : pooling) modes.push_back(choose(mode, "pooling mode", kPoolingModes));
  const Kernels& kernels = kernels_for(active_isa());
  const GilRelease release;
  return std::make_unique<Encoder>(config, tensors, std::move(modes), std::move(head), kernels);
}

py::tuple run(const Encoder& encoder, const TokenSource& source, const EncodeOptions& options) {
  EncodeStats stats;
  py::object result;
  if (options.token_embeddings) {
    std::vector<std::vector<float>> rows;
    heard([&](StopToken& stop) { stats = encode_tokens(encoder, source, options, rows, stop); });
    py::list list;
    const auto hidden = static_cast<py::ssize_t>(encoder.config().hidden_size);
    for (std::vector<float>& text : rows) {
      auto kept = std::make_unique<std::vector<float>>(std::move(text));
      const py::capsule owner(kept.get(), [](void* p) { delete static_cast<std::vector<float>*>(p); });
      const std::vector<float>* values = kept.release();
      list.append(py::array_t<float>({static_cast<py::ssize_t>(values->size()) / hidden, hidden},
                                     values->data(), owner));
    }
    result = std::move(list);
  } else {
    const auto dimension = static_cast<py::ssize_t>(output_dimension(encoder, options));
    py::array_t<float> vectors({static_cast<py::ssize_t>(source.size()), dimension});
    float* out = vectors.mutable_data();
    heard([&](StopToken& stop) { stats = encode(encoder, source, options, out, stop); });
    result = std::move(vectors);
  }
  py::dict counts;
  counts["tokens"] = stats.tokens;
  counts["truncated"] = stats.truncated;
  counts["unknown"] = stats.unknown;
  if (options.profile) {
    py::dict stages;
    for (size_t i = 0; i < stats.stages.size(); ++i) stages[kStageNames[i]] = stats.stages[i];
    counts["stages"] = std::move(stages);
  }
  return py::make_tuple(result, counts);
}

py::tuple run_pairs(const Encoder& encoder, const TokenSource& first, const TokenSource& second,
                    const EncodeOptions& options) {
  require(options.pair.has_value(), "the options of pairs lack 'pair'");
  require(first.size() == second.size(), first.size(), " first texts and ", second.size(),
          " second ones do not form pairs");
  return run(encoder, PairSource(first, second), options);
}

void bind_all_options(py::module_& m) {
  using P = PairTemplate;
  bind_options<P>(
      m, "PairTemplate",
      {required(field<P>("between_ids", &P::between_ids)), required(field<P>("typed", &P::typed)),
       required(field<P>("prefix_types", &P::prefix_types)),
       required(field<P>("between_types", &P::between_types)),
       required(field<P>("suffix_types", &P::suffix_types)), required(field<P>("first_type", &P::first_type)),
       required(field<P>("second_type", &P::second_type))},
      [](const P&) {});
  using O = EncodeOptions;
  bind_options<O>(
      m, "EncodeOptions",
      {required(field<O>("threads", &O::threads)), required(field<O>("prefix_ids", &O::prefix_ids)),
       required(field<O>("suffix_ids", &O::suffix_ids)), required(field<O>("max_length", &O::max_length)),
       field<O>("overflow", &O::overflow,
                Names<Overflow>{{"truncate", Overflow::kTruncate},
                                {"error", Overflow::kError},
                                {"window", Overflow::kWindow}}),
       field<O>("truncation_side", &O::truncate_left, Names<bool>{{"right", false}, {"left", true}}),
       field<O>("pool_skip", &O::pool_skip), field<O>("first_text", &O::first_text),
       field<O>("unknown_id", &O::unknown_id), field<O>("pair", &O::pair),
       field<O>("batch_size", &O::batch_size), field<O>("truncate_dim", &O::truncate_dim),
       field<O>("normalize", &O::normalize), field<O>("token_embeddings", &O::token_embeddings),
       field<O>("profile", &O::profile)},
      [](const O& options) { options.validate(); });
  using C = EncoderConfig;
  bind_options<C>(m, "EncoderConfig",
                  {required(field<C>("hidden_size", &C::hidden_size)),
                   required(field<C>("num_hidden_layers", &C::num_hidden_layers)),
                   required(field<C>("num_attention_heads", &C::num_attention_heads)),
                   required(field<C>("intermediate_size", &C::intermediate_size)),
                   required(field<C>("vocab_size", &C::vocab_size)),
                   required(field<C>("max_position_embeddings", &C::max_position_embeddings)),
                   field<C>("type_vocab_size", &C::type_vocab_size),
                   field<C>("task_type_vocab_size", &C::task_type_vocab_size),
                   field<C>("padding_idx", &C::padding_idx),
                   field<C>("relative_attention_num_buckets", &C::relative_attention_num_buckets),
                   field<C>("position_table", &C::position_table),
                   field<C>("score_terms", &C::score_terms),
                   field<C>("position_buckets", &C::position_buckets),
                   field<C>("max_relative_positions", &C::max_relative_positions),
                   field<C>("rotary", &C::rotary),
                   field<C>("rotary_value", &C::rotary_value),
                   field<C>("embedding_size", &C::embedding_size),
                   field<C>("head_size", &C::head_size),
                   field<C>("num_key_value_heads", &C::num_key_value_heads),
                   field<C>("rotary_base", &C::rotary_base),
                   field<C>("rotary_local_base", &C::rotary_local_base),
                   field<C>("rotary_divisor", &C::rotary_divisor),
                   field<C>("rotary_short_wave", &C::rotary_short_wave),
                   field<C>("rotary_long_wave", &C::rotary_long_wave),
                   field<C>("rotary_stretch", &C::rotary_stretch),
                   field<C>("rotary_trained", &C::rotary_trained),
                   field<C>("alibi", &C::alibi),
                   field<C>("causal", &C::causal),
                   field<C>("window", &C::window),
                   field<C>("local_layers", &C::local_layers),
                   field<C>("num_hidden_groups", &C::num_hidden_groups),
                   field<C>("norm_place", &C::norm_place, kNormPlaces),
                   field<C>("norm_kind", &C::norm_kind, kNormKinds),
                   field<C>("embedding_norm", &C::embedding_norm),
                   field<C>("query_key_norm", &C::query_key_norm),
                   field<C>("gate", &C::gate, kGates),
                   field<C>("biases", &C::biases),
                   field<C>("embedding_scale", &C::embedding_scale),
                   field<C>("static_rows", &C::static_rows),
                   field<C>("ignored_id", &C::ignored_id),
                   required(field<C>("layer_norm_eps", &C::layer_norm_eps)),
                   required(field<C>("hidden_act", &C::hidden_act, kActivations))},
                  [](const C& config) { config.validate(); });
  using M = HeadModule;
  bind_options<M>(m, "HeadModule",
                  {required(field<M>("type", &M::type,
                                     Names<M::Type>{{"dense", M::Type::kDense},
                                                    {"normalize", M::Type::kNormalize},
                                                    {"layer_norm", M::Type::kLayerNorm}})),
                   tensor_field("weight", &M::weight), tensor_field("bias", &M::bias),
                   field<M>("activation", &M::activation, kActivations)},
                  check_module);
}

}  // namespace

void bind_encoder(py::module_& m) {
  bind_all_options(m);
  m.def(
      "active_isa", [] { return std::string(isa_name(active_isa())); },
      "The instruction set that an `Encoder` made now runs on, e.g. \"avx2\"; one of `available_isas`.\n\n"
      "``EMBEDKIT_ISA``, which is read by each call, forces one.");
  m.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (const Isa isa : available_isas()) names.emplace_back(isa_name(isa));
        return names;
      },
      "The instruction sets that this machine can run, slowest first.");
  py::class_<Encoder>(m, "Encoder")
      .def(py::init(&make_encoder), py::arg("config"), py::arg("tensors"), py::arg("pooling"),
           py::arg("head"), py::arg("precision"))
      .def_property_readonly("dimension", &Encoder::dimension)
      .def_property_readonly("isa", [](const Encoder& e) { return std::string(isa_name(e.kernels().isa)); })
      .def_property_readonly("products",
                             [](const Encoder& e) {
                               switch (e.config().precision) {
                                 case Precision::kFp32:
                                   return e.kernels().fp32_instruction;
                                 case Precision::kBf16:
                                   return e.kernels().bf16.instruction;
                                 case Precision::kInt8:
                                   return e.kernels().int8_instruction;
                               }
                               throw InternalError("unknown precision");
                             })
      .def_property_readonly("memory_bytes", &Encoder::memory_bytes)
      .def("encode",
           [](const Encoder& encoder, const py::list& texts, const Tokenizer& tokenizer,
              const EncodeOptions& options) {
             const Texts views(texts);
             return run(encoder, TextSource(tokenizer, views.views()), options);
           })
      .def("encode_pairs",
           [](const Encoder& encoder, const py::list& first, const py::list& second,
              const Tokenizer& tokenizer, const EncodeOptions& options) {
             const Texts a(first, "first");
             const Texts b(second, "second");
             return run_pairs(encoder, TextSource(tokenizer, a.views()), TextSource(tokenizer, b.views()),
                              options);
           })
      .def("encode_id_pairs",
           [](const Encoder& encoder, const std::vector<std::vector<int32_t>>& first,
              const std::vector<std::vector<int32_t>>& second, const EncodeOptions& options) {
             return run_pairs(encoder, IdSource(first), IdSource(second), options);
           })
      .def("encode_ids", [](const Encoder& encoder, const std::vector<std::vector<int32_t>>& ids,
                            const EncodeOptions& options) { return run(encoder, IdSource(ids), options); });
}

}  // namespace embedkit
