"""Of the workers that FSDP divides a model among, the first alone reads its weights."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

READS = """
import json, sys
import torch
torch.distributed.init_process_group("gloo")
from accelerate.utils import patch_environment
from curation.config.models import as_student_config
from curation.refs import ModelRef
from train.models import load_base
from train.trainer import find_loading_variables
config = as_student_config(json.loads(sys.argv[2]))
with patch_environment(**find_loading_variables(config)):
    model = load_base(ModelRef(base=sys.argv[1]), config)
total = sum(weight.detach().abs().sum().item() for weight in model.parameters())
inverse = model.model.rotary_emb.inv_freq.abs().sum().item()
print(json.dumps([total, inverse]))
"""


@pytest.mark.parametrize(
    ("section", "is_read_by_both"),
    [
        ({"method": "sft", "sharding": "fsdp"}, False),
        ({"method": "sft", "sharding": "ddp"}, True),
    ],
)
def test_the_first_worker_alone_reads_what_is_divided(tiny_model, section, is_read_by_both):
    def started(rank: int) -> subprocess.Popen:
        told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        told |= {"MASTER_PORT": "29587"}
        command = [
            sys.executable,
            "-c",
            READS,
            tiny_model.base,
            json.dumps(section | {"num_workers": 2, "compute_dtype": "float32"}),
        ]
        return subprocess.Popen(command, env=os.environ | told, stdout=subprocess.PIPE, text=True)

    workers = [started(rank) for rank in range(2)]
    (first, its), (other, others) = (
        json.loads(worker.communicate(timeout=120)[0].splitlines()[-1]) for worker in workers
    )
    assert first > 0 and its == others > 0, "buffers that no file has are made by each"
    assert (other == first) if is_read_by_both else (other == 0)
