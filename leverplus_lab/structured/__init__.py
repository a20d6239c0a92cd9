"""Records what a frozen model answers to chosen lists of examples, on tasks whose answers have structure.

    python -m leverplus_lab.structured items DATA.jsonl --out ITEMS.jsonl.gz     a corpus, dev and test questions
    python -m leverplus_lab.structured plan ITEMS.jsonl.gz --arms A,B --out JOB  lists of every arm, as one job
    python -m leverplus_lab.structured ask JOB ... --model M --out ANSWERS       asks them in shards, resumes
    python -m leverplus_lab.structured table JOB --answers ANSWERS --out FILE    scores them as a recorded table
    python -m leverplus_lab.structured record JOB --items I --answers ANSWERS ... what every arm got, by id
    python -m leverplus_lab.structured report RECORDS                            what may be said of them
    python -m leverplus_lab.structured spread TABLE                              how much one example changes

`ask` needs the weights, torch and transformers only: no database, no metric, no encoder. So the same command runs
beside other work on a CPU, and on a machine with an accelerator that holds nothing else.
"""
