"""Lay out the table and tokenizer that the package wordllama ships as a Model2Vec folder, for ``sts.py``.

    pip install --no-deps wordllama
    python benchmarks/wordllama_folder.py OUT
    embedkit-train distill-static sentence-transformers/all-MiniLM-L6-v2 -o minilm-static
    python benchmarks/sts.py OUT minilm-static all-MiniLM-L6-v2 --json benchmarks/results/sts-static.json

Both folders are static models; all-MiniLM-L6-v2 is the encoder that one of them is made of.
"""

import argparse
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

#: Longer texts do not occur in STS; wordllama itself does not cut texts.
MAX_LENGTH = 512


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path, metavar="OUT", help="folder to make")
    options = parser.parse_args()

    import safetensors.numpy

    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        sys.exit("wordllama is not installed: pip install --no-deps wordllama")
    package = Path(spec.origin).parent
    (table,) = safetensors.numpy.load_file(package / "weights" / "l2_supercat_256.safetensors").values()
    options.output.mkdir(parents=True)
    safetensors.numpy.save_file({"embeddings": table}, options.output / "model.safetensors")
    shutil.copyfile(
        package / "tokenizers" / "l2_supercat_tokenizer_config.json", options.output / "tokenizer.json"
    )
    config = {"model_type": "model2vec", "normalize": True, "max_length": MAX_LENGTH}
    (options.output / "config.json").write_text(json.dumps(config))
    kinds = {".": "StaticEmbedding", "1_Normalize": "Normalize"}
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (path, kind) in enumerate(kinds.items())
    ]
    (options.output / "modules.json").write_text(json.dumps(modules))


if __name__ == "__main__":
    main()
