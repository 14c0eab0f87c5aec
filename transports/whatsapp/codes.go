package whatsapp

import (
	"net/http"
	"time"

	"github.com/gorm-outbox/outbox/policy"
)

// rule says what a failure means for the message.
type rule struct {
	category policy.Category
	class    policy.Class  // empty: the category's
	wait     time.Duration // the least wait before another try
	alone    bool          // the wait is about the message, recipient or sender, not about everything that is sent
	unknown  bool          // with a server error: the message may have been accepted all the same
}

// metaCodes are Meta's error codes, which Kapso passes on.
var metaCodes = map[int]rule{
	0:      {category: policy.CategoryCredentials}, // the token is not valid
	3:      {category: policy.CategoryCredentials}, // a permission is missing; comes as HTTP 500
	10:     {category: policy.CategoryCredentials}, // a permission is missing
	33:     {category: policy.CategoryCredentials}, // the business number is deleted
	190:    {category: policy.CategoryCredentials}, // the token has expired
	131005: {category: policy.CategoryCredentials}, // a permission is missing
	131037: {category: policy.CategoryCredentials}, // the sender's display name is not approved
	131045: {category: policy.CategoryCredentials}, // the sender's certificate
	133000: {category: policy.CategoryCredentials}, // registration of the sender, as are those up to 133016
	133005: {category: policy.CategoryCredentials}, // wrong PIN
	133006: {category: policy.CategoryCredentials}, // not verified
	133008: {category: policy.CategoryCredentials}, // too many wrong PINs
	133009: {category: policy.CategoryCredentials}, // PINs entered too fast
	133010: {category: policy.CategoryCredentials}, // the sender is not registered
	133015: {category: policy.CategoryCredentials}, // deleted not long ago
	133016: {category: policy.CategoryCredentials}, // registered too often

	4:      {category: policy.CategoryRateLimited},                                      // calls of the app
	17:     {category: policy.CategoryRateLimited},                                      // calls of the user
	613:    {category: policy.CategoryRateLimited},                                      // calls of the app
	80007:  {category: policy.CategoryRateLimited},                                      // calls of the account
	130429: {category: policy.CategoryRateLimited},                                      // messages of the number
	131056: {category: policy.CategoryRateLimited, wait: time.Minute, alone: true},      // too many to this recipient
	131048: {category: policy.CategoryRateLimited, wait: time.Hour, alone: true},        // the number's messages are called spam
	131064: {category: policy.CategoryRateLimited, wait: 24 * time.Hour, alone: true},   // the template was in the wrong category
	132069: {category: policy.CategoryRateLimited, wait: time.Hour, alone: true},        // the template's flow is throttled
	1:      {category: policy.CategoryNetwork, unknown: true},                           // bad request or server error
	2:      {category: policy.CategoryNetwork, unknown: true},                           // down or overloaded
	131000: {category: policy.CategoryNetwork, unknown: true},                           // something went wrong
	131016: {category: policy.CategoryNetwork},                                          // the service is unavailable
	131057: {category: policy.CategoryNetwork, wait: 5 * time.Minute},                   // the account is in maintenance
	133004: {category: policy.CategoryNetwork},                                          // the server is unavailable for now
	134101: {category: policy.CategoryTemplate, class: policy.Transient, wait: syncing}, // the template is not everywhere yet

	2494100: {category: policy.CategoryNetwork, wait: 5 * time.Minute}, // the number is in maintenance

	131055: {category: policy.CategoryTemplate}, // not on this endpoint
	131063: {category: policy.CategoryTemplate}, // not in this category
	132000: {category: policy.CategoryTemplate}, // the number of parameters differs
	132001: {category: policy.CategoryTemplate}, // absent in that language, or not approved
	132005: {category: policy.CategoryTemplate}, // too long once filled in
	132007: {category: policy.CategoryTemplate}, // violates a policy
	132012: {category: policy.CategoryTemplate}, // the format of a parameter differs
	132015: {category: policy.CategoryTemplate}, // paused
	132016: {category: policy.CategoryTemplate}, // disabled
	132018: {category: policy.CategoryTemplate}, // a parameter is not valid
	132068: {category: policy.CategoryTemplate}, // its flow is blocked
	134100: {category: policy.CategoryTemplate}, // only marketing on this endpoint
	134102: {category: policy.CategoryTemplate}, // not for this endpoint

	130403: {category: policy.CategoryNumber}, // the business has blocked this user
	131021: {category: policy.CategoryNumber}, // the recipient is the sender
	131026: {category: policy.CategoryNumber}, // no WhatsApp there, or too old, or its terms not accepted
	131030: {category: policy.CategoryNumber}, // not on the list of a test number
	131062: {category: policy.CategoryNumber}, // not for a user who is known by an id only

	131042: {category: policy.CategoryBilling}, // the payment method
	134011: {category: policy.CategoryBilling}, // the payment terms
	131047: {category: policy.CategoryWindow},  // 24 hours since the recipient last wrote

	100:     {category: policy.CategoryRejected}, // a parameter is not valid
	368:     {category: policy.CategoryRejected}, // the account is blocked for a policy
	130472:  {category: policy.CategoryRejected}, // the recipient is in an experiment
	130497:  {category: policy.CategoryRejected}, // the recipient's country is barred
	131008:  {category: policy.CategoryRejected}, // a parameter is missing
	131009:  {category: policy.CategoryRejected}, // a parameter has a bad value
	131031:  {category: policy.CategoryRejected}, // the account is locked
	131049:  {category: policy.CategoryRejected}, // Meta chose not to deliver it
	131050:  {category: policy.CategoryRejected}, // the recipient wants no marketing
	131051:  {category: policy.CategoryRejected}, // the type of message
	131052:  {category: policy.CategoryRejected}, // the medium could not be downloaded
	131053:  {category: policy.CategoryRejected}, // the medium could not be uploaded; see mediumOnce
	131060:  {category: policy.CategoryRejected}, // not of a send
	135000:  {category: policy.CategoryRejected}, // a parameter, unsaid which
	200005:  {category: policy.CategoryRejected}, // not of a send
	200006:  {category: policy.CategoryRejected}, // not of a send
	200007:  {category: policy.CategoryRejected}, // not of a send
	2593107: {category: policy.CategoryRejected}, // not of a send
	2593108: {category: policy.CategoryRejected}, // not of a send
}

// syncing is how long a new template takes to reach all of Meta's servers.
const syncing = 10 * time.Minute

// metaRanges are blocks of Meta's codes that mean one thing.
var metaRanges = []struct {
	from, to int
	rule
}{
	{200, 299, rule{category: policy.CategoryCredentials}},      // a permission is missing
	{2388000, 2388999, rule{category: policy.CategoryRejected}}, // not of a send
}

// codeMediumUpload is the one code whose meaning depends on the message: where the provider fetched the medium from the
// app's server, that may have been down, and a second try is worth it.
const codeMediumUpload = 131053

// names are Kapso's own codes, which are words.
var names = map[string]rule{
	"marketing_preference_stopped": {category: policy.CategoryRejected}, // the recipient wants no marketing
}

// Statuses without a code that anyone has catalogued. A code that is unknown is worth another try, lest a message be
// dropped for one that is new, unless the status leaves no hope. An answer without a code is Kapso's own, or a proxy's.
var (
	uncoded = map[int]rule{
		http.StatusUnauthorized:        {category: policy.CategoryCredentials}, // the API key
		http.StatusForbidden:           {category: policy.CategoryCredentials}, // the API key
		http.StatusPaymentRequired:     {category: policy.CategoryBilling},     // paid messages are paused
		http.StatusNotFound:            {category: policy.CategoryCredentials}, // the number is not of this project
		http.StatusUnprocessableEntity: {category: policy.CategoryWindow},      // 24 hours since the recipient last wrote
	}
	unknownCode = map[int]rule{
		http.StatusUnauthorized: {category: policy.CategoryCredentials},
		http.StatusForbidden:    {category: policy.CategoryCredentials},
		http.StatusNotFound:     {category: policy.CategoryRejected},
	}
	otherUncoded     = rule{category: policy.CategoryRejected}
	otherUnknownCode = rule{category: policy.CategoryRejected, class: policy.Transient}
)

// words tell the reasons for a 400 or a 422 without a code apart, the first that is found.
var words = []struct {
	word string
	rule
}{
	{"template", rule{category: policy.CategoryTemplate}},
	{"24 hour", rule{category: policy.CategoryWindow}},
	{"24-hour", rule{category: policy.CategoryWindow}},
	{"phone number", rule{category: policy.CategoryNumber}},
	{"recipient", rule{category: policy.CategoryNumber}},
}

// statusRule is what a status means whatever comes with it. A redirect is the fault of an address, and is mended there.
func statusRule(status int) (rule, bool) {
	switch {
	case status == http.StatusTooManyRequests:
		return rule{category: policy.CategoryRateLimited}, true
	case status == http.StatusTooEarly, status < 400:
		return rule{category: policy.CategoryNetwork}, true
	case status == http.StatusRequestTimeout, status >= 500:
		return rule{category: policy.CategoryNetwork, unknown: true}, true
	default:
		return rule{}, false
	}
}
