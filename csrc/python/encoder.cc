#include "encoder/encoder.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/platform.h"
#include "pipeline/encode.h"
#include "python/bind.h"
#include "python/gil.h"
#include "python/interrupt.h"
#include "python/options.h"
#include "python/texts.h"

namespace py = pybind11;

namespace embedkit {
namespace {

Activation activation_named(const std::string& name) {
  return choose<Activation>(name, "activation",
                            {{"identity", Activation::kIdentity},
                             {"gelu", Activation::kGelu},
                             {"gelu_new", Activation::kGeluTanh},
                             {"relu", Activation::kRelu},
                             {"tanh", Activation::kTanh},
                             {"sigmoid", Activation::kSigmoid}});
}

PoolingMode pooling_named(const std::string& name) {
  return choose<PoolingMode>(name, "pooling mode",
                             {{"cls", PoolingMode::kCls},
                              {"lasttoken", PoolingMode::kLastToken},
                              {"max", PoolingMode::kMax},
                              {"mean", PoolingMode::kMean},
                              {"mean_sqrt_len", PoolingMode::kMeanSqrtLen},
                              {"weightedmean", PoolingMode::kWeightedMean}});
}

/// Refers to the array's memory; the reference is given up with the GIL held, whoever drops it.
Tensor tensor_of(const std::string& name, const py::handle& value) {
  const auto array = py::reinterpret_borrow<py::object>(value);
  if (!py::isinstance<py::array>(array))
    throw py::type_error(concat("tensor '", name, "' is no numpy array"));
  const auto numpy = py::reinterpret_borrow<py::array>(array);
  Tensor tensor;
  if (py::isinstance<py::array_t<float>>(numpy)) {
    tensor.type = Tensor::Type::kFloat32;
  } else if (py::isinstance<py::array_t<int8_t>>(numpy)) {
    tensor.type = Tensor::Type::kInt8;
  } else {
    throw py::type_error(
        concat("tensor '", name, "' is ", std::string(py::str(numpy.dtype())), ", not float32 or int8"));
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

std::unique_ptr<Encoder> make_encoder(const py::dict& config_dict, const py::dict& tensor_dict,
                                      const py::dict& pooling, const py::list& head_list,
                                      const std::string& precision) {
  const Options c(config_dict, "config");
  EncoderConfig config;
  config.hidden_size = c.get<size_t>("hidden_size");
  config.num_hidden_layers = c.get<size_t>("num_hidden_layers");
  config.num_attention_heads = c.get<size_t>("num_attention_heads");
  config.intermediate_size = c.get<size_t>("intermediate_size");
  config.vocab_size = c.get<size_t>("vocab_size");
  config.max_position_embeddings = c.get<size_t>("max_position_embeddings");
  config.type_vocab_size = c.get<size_t>("type_vocab_size", 0);
  config.padding_idx = c.get<int32_t>("padding_idx", -1);
  config.relative_attention_num_buckets = c.get<size_t>("relative_attention_num_buckets", 0);
  config.rotary = c.get<bool>("rotary", false);
  config.rotary_value = c.get<bool>("rotary_value", false);
  config.embedding_size = c.get<size_t>("embedding_size", 0);
  if (config.embedding_size == config.hidden_size) config.embedding_size = 0;
  config.layer_norm_eps = c.get<float>("layer_norm_eps");
  config.hidden_act = activation_named(c.get<std::string>("hidden_act"));
  config.precision =
      choose<Precision>(precision, "precision", {{"fp32", Precision::kFp32}, {"int8", Precision::kInt8}});

  Tensors tensors;
  for (const auto& [key, value] : tensor_dict) {
    const auto name = key.cast<std::string>();
    tensors.emplace(name, tensor_of(name, value));
  }
  std::vector<PoolingMode> modes;
  for (const std::string& mode : Options(pooling, "pooling").get<std::vector<std::string>>("modes"))
    modes.push_back(pooling_named(mode));
  std::vector<HeadModule> head;
  for (const py::handle& item : head_list) {
    const py::dict dict = item.cast<py::dict>();
    const Options module(dict, "head module");
    HeadModule next;
    next.type = choose<HeadModule::Type>(
        module.get<std::string>("type"), "head module",
        {{"dense", HeadModule::Type::kDense}, {"normalize", HeadModule::Type::kNormalize}});
    if (next.type == HeadModule::Type::kDense) {
      next.weight = tensor_of("head weight", module.get<py::object>("weight"));
      require(next.weight.type == Tensor::Type::kFloat32, "a head weight is int8, not float32");
      const auto bias = module.get<py::object>("bias");
      if (!bias.is_none()) {
        next.bias = tensor_of("head bias", bias);
        require(next.bias.type == Tensor::Type::kFloat32 && next.weight.shape.size() == 2 &&
                    next.bias.shape == std::vector<size_t>{next.weight.shape[0]},
                "a head bias does not fit its weight");
      }
      next.activation = activation_named(module.get<std::string>("activation"));
    }
    head.push_back(std::move(next));
  }
  const Kernels& kernels = kernels_for(active_isa());
  const GilRelease release;
  return std::make_unique<Encoder>(config, tensors, std::move(modes), std::move(head), kernels);
}

EncodeOptions options_of(const py::dict& dict) {
  const Options o(dict, "options");
  EncodeOptions options{tokenize_options_of(dict)};
  options.batch_size = o.get<size_t>("batch_size", 0);
  options.truncate_dim = o.get<size_t>("truncate_dim", 0);
  options.normalize = o.get<bool>("normalize", false);
  options.profile = o.get<bool>("profile", false);
  return options;
}

py::tuple run(const Encoder& encoder, const TokenSource& source, const py::dict& dict) {
  const EncodeOptions options = options_of(dict);
  const bool token_embeddings = Options(dict, "options").get<bool>("token_embeddings", false);
  InterruptPoll poll;
  StopToken stop(poll.callback());
  EncodeStats stats;
  py::object result;
  try {
    if (token_embeddings) {
      std::vector<std::vector<float>> rows;
      {
        const GilRelease release;
        stats = encode_tokens(encoder, source, options, rows, stop);
      }
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
      {
        const GilRelease release;
        stats = encode(encoder, source, options, out, stop);
      }
      result = std::move(vectors);
    }
  } catch (const Interrupted&) {
    poll.rethrow();
    throw;
  }
  py::dict counts;
  counts["tokens"] = stats.tokens;
  counts["truncated"] = stats.truncated;
  if (options.profile) {
    py::dict stages;
    for (size_t i = 0; i < stats.stages.size(); ++i) stages[kStageNames[i]] = stats.stages[i];
    counts["stages"] = std::move(stages);
  }
  return py::make_tuple(result, counts);
}

py::tuple run_pairs(const Encoder& encoder, const TokenSource& first, const TokenSource& second,
                    const py::dict& options) {
  require(options.contains("pair"), "the options of pairs lack 'pair'");
  require(first.size() == second.size(), first.size(), " first texts and ", second.size(),
          " second ones are no pairs");
  return run(encoder, PairSource(first, second), options);
}

}  // namespace

void bind_encoder(py::module_& m) {
  m.def("active_isa", [] { return std::string(isa_name(active_isa())); });
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Isa isa : available_isas()) names.emplace_back(isa_name(isa));
    return names;
  });
  m.def("default_threads", &default_threads);
  py::class_<Encoder>(m, "Encoder")
      .def(py::init(&make_encoder), py::arg("config"), py::arg("tensors"), py::arg("pooling"),
           py::arg("head"), py::arg("precision"))
      .def_property_readonly("dimension", &Encoder::dimension)
      .def_property_readonly("isa", [](const Encoder& e) { return std::string(isa_name(e.kernels().isa)); })
      .def_property_readonly("memory_bytes", &Encoder::memory_bytes)
      .def("encode",
           [](const Encoder& encoder, const py::list& texts, const WordPiece& tokenizer,
              const py::dict& options) {
             const Texts views(texts);
             return run(encoder, TextSource(tokenizer, views.views()), options);
           })
      .def("encode_pairs",
           [](const Encoder& encoder, const py::list& first, const py::list& second,
              const WordPiece& tokenizer, const py::dict& options) {
             const Texts a(first, "first");
             const Texts b(second, "second");
             return run_pairs(encoder, TextSource(tokenizer, a.views()), TextSource(tokenizer, b.views()),
                              options);
           })
      .def("encode_id_pairs",
           [](const Encoder& encoder, const std::vector<std::vector<int32_t>>& first,
              const std::vector<std::vector<int32_t>>& second, const py::dict& options) {
             return run_pairs(encoder, IdSource(first), IdSource(second), options);
           })
      .def("encode_ids", [](const Encoder& encoder, const std::vector<std::vector<int32_t>>& ids,
                            const py::dict& options) { return run(encoder, IdSource(ids), options); });
}

}  // namespace embedkit
