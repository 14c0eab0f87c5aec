// Package whatsapp delivers messages through WhatsApp, as approved templates: through Kapso, or through Meta's Cloud API
// itself.
//
//	sender, err := whatsapp.Cloud(whatsapp.CloudConfig{}) // Kapso; or BaseURL: whatsapp.MetaURL, Auth: whatsapp.AuthBearer
//	transport, err := whatsapp.New(whatsapp.Config{Credentials: credentialsOf, Params: fill, Sender: sender})
//
// A message's Recipient is a phone number in international form, and its Type the name of the template unless Params
// says otherwise.
//
// # Doubles
//
// WhatsApp knows no idempotency keys. When an answer is lost the message may have been delivered, and delivery at least
// once then sends it again. Where a double is worse than a loss, name the topic in AtMostOnce of outbox.ProcessorConfig:
// every failure of this package says whether its outcome is unknown, and known refusals are still tried again.
//
// # Receipts
//
// That the provider took a message does not mean that it arrives: most refusals come later, by webhook.
// [StatusHandler] receives them and notes on the record what became of its message.
//
// # Failures
//
// The provider's own error code decides, the HTTP status only where there is none. Failures name the code and quote
// neither the provider's text nor the recipient, the parameters or the credentials.
package whatsapp
