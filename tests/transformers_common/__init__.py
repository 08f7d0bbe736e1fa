"""Transformers' own common tests, run against the classes of hf_video.

The source distribution of Transformers on PyPI carries the mixins that every model of the library must pass
(`test_modeling_common.py` and its neighbours); the wheel does not. `distribution.py` fetches them for the installed
version, `stand_ins.py` supplies what the distribution leaves out, `model_testing.py` fits them to models of videos,
and one test file a family subclasses them. A new family writes a `VideoModelTester` and a `VideoModelTestMixin`.
"""
