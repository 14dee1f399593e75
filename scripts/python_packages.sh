# shellcheck shell=bash disable=SC2034
# The Python packages that tests use beside torch, for scripts/foreign_setup.sh and scripts/newest_setup.sh. All are
# named: nothing is left to resolve, and nothing else comes with them.

LIBRARIES=(
  transformers==5.23.0 safetensors==0.8.0 tokenizers==0.23.3 huggingface_hub==2.4.0 numpy==2.4.6
  packaging==26.4 pyyaml==6.0.4 regex==2026.11.19 tqdm==4.70.1 xxhash==4.1.0
  # imported by huggingface_hub
  anyio==4.16.0 click==8.5.1 h11==0.16.0 httpcore2==2.16.2 httpx2==2.16.2 idna==3.20 truststore==0.10.5
  # whose operators run on parameters, with torchvision
  bitsandbytes==0.50.2 pillow==13.0.0
  # who trains through `import elixir`, and what that draws and shows with
  accelerate==1.15.0 peft==0.21.2 trl==1.16.0 datasets==5.2.0 psutil==7.2.2 pandas==3.1.1 pyarrow==26.0.1
  dill==0.4.1 multiprocess==0.70.19 python-dateutil==4.0.0 rich==15.0.0 markdown-it-py==4.3.0 mdurl==0.1.2
  Pygments==2.21.0 matplotlib==3.11.2 contourpy==1.3.3 cycler==0.12.1 fonttools==4.68.0 kiwisolver==1.5.1
  pyparsing==3.3.3
  # what reads the package's types, and what builds it for pip
  mypy==2.4.1 mypy_extensions==1.2.0 ast_serialize==0.13.1 librt==0.17.0 pathspec==1.1.1 scikit_build_core==1.1.2
)
